"""Gathers sparse gradients with MPI's own Allgatherv instead of the backend's allgather. Only this file imports
mpi4py."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops as collectives
from parallax_runner.collectives.chosen import backend
from parallax_runner.errors import CollectiveError, Setting

if TYPE_CHECKING:
    from mpi4py import MPI


def join() -> tuple[int, int]:
    """Joins the other ranks as `collectives.join` does, and checks that MPI connects them.

    Raises CollectiveError if Gloo connects the ranks, if MPI lacks MPI_THREAD_MULTIPLE, or if mpi4py and Horovod use
    different MPI libraries.
    """
    variable = backend().without_mpi_by(os.environ)
    if variable is not None:
        raise _refusal(
            f"this key needs MPI, but {variable}=gloo connects the ranks through Gloo", remedy="unset that variable"
        )
    rank, size = collectives.join(may_fuse=False)
    if not collectives.runs_over_mpi():
        raise _refusal(
            f"this key needs MPI, but {backend().title} connects the ranks without MPI",
            remedy="start the ranks with mpirun",
        )
    if (communicator().rank, communicator().size) != (rank, size):
        found, title = f"{communicator().rank} of {communicator().size}", backend().title
        raise _refusal(
            f"this key needs {title} and mpi4py to use the same MPI library, but rank "
            f"{rank} of {size} in {title} is rank {found} in mpi4py",
            remedy="build both with the same MPI library",
        )
    return rank, size


@functools.cache
def communicator() -> MPI.Comm:
    """Returns a duplicate of the communicator of all ranks. Messages on the duplicate never mix with messages from
    the backend.

    The first call is a collective. The backend must already have initialized MPI. It also finalizes MPI at the end.
    Raises CollectiveError if MPI lacks MPI_THREAD_MULTIPLE.
    """
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise _refusal(
            "this key needs MPI_THREAD_MULTIPLE, but MPI provides a lower level", remedy=backend().threads_remedy
        )
    return MPI.COMM_WORLD.Dup()


def concat_rows_over_ranks(
    values: tf.Tensor, indices: tf.Tensor, *, after: tf.Operation | None, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Concatenates the values [n, ...] and indices [n] of all ranks, in rank order. n may differ between ranks.

    Runs after the op `after`. MPI matches calls only by their order, so all ranks must make their calls in the same
    order.
    """
    with tf.control_dependencies([] if after is None else [after]):
        gathered = tf.numpy_function(_gather_both, [values, indices], [values.dtype, indices.dtype], name=name)
    gathered[0].set_shape(tf.TensorShape([None]).concatenate(values.shape[1:]))
    gathered[1].set_shape([None])
    return gathered[0], gathered[1]


def _gather_both(values: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = np.empty(communicator().size, np.int64)
    communicator().Allgather(np.array([len(indices)], np.int64), rows)
    return _gather(values, rows), _gather(indices, rows)


def _gather(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Gathers an array, given every rank's number of rows.

    The MPI type of a row consists of bytes, since MPI has no float16. Counts are in rows, since counts in bytes would
    be limited to 2 GB.
    """
    from mpi4py import MPI

    result = np.empty((rows.sum(), *array.shape[1:]), array.dtype)
    row = MPI.BYTE.Create_contiguous(array.itemsize * int(np.prod(array.shape[1:]))).Commit()
    try:
        offsets = np.cumsum(rows) - rows
        sent, received = (np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (array, result))
        communicator().Allgatherv([sent, len(array), row], [received, (rows, offsets), row])
    finally:
        row.Free()
    return result


def _refusal(reason: str, *, remedy: str) -> CollectiveError:
    key = "comm.mpi.use_allgatherv"
    return CollectiveError(reason).about(Setting(key, "true"), remedy=f"{remedy}, or set {key}=false")
