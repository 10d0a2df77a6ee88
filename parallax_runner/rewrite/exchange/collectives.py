"""Provides the collectives. This is the only file that imports Horovod, and the only file to change for a different
library."""

from __future__ import annotations

import importlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import horovod
import tensorflow.compat.v1 as tf


def _ops_of_horovod() -> ModuleType:
    """Imports `horovod.tensorflow.mpi_ops` without importing the package `horovod.tensorflow`.

    The package imports Keras, which would make a process's imports take 50% longer. A script's own `import
    horovod.tensorflow` still imports the whole package.
    """
    name = "horovod.tensorflow"
    if name in sys.modules:
        return importlib.import_module(f"{name}.mpi_ops")
    stand_in = ModuleType(name)
    stand_in.__path__ = [str(Path(folder, "tensorflow")) for folder in horovod.__path__]
    sys.modules[name] = stand_in
    try:
        return importlib.import_module(f"{name}.mpi_ops")
    finally:
        del sys.modules[name]


hvd = _ops_of_horovod()
# Maps each dtype that Horovod does not support to the dtype of the same size that is sent instead.
CARRIERS = {tf.bfloat16: tf.float16}
# Environment variables that make Horovod run without MPI.
CONTROLLERS = ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")


def init(*, lengths_vary: bool = False, may_fuse: bool = True) -> tuple[int, int]:
    """Joins the other ranks, and returns (rank, size).

    With `lengths_vary`, the lengths of messages change from step to step. Horovod's response cache then never hits, and
    each lookup costs an exchange, so the cache is turned off unless the user configures it. Without `may_fuse`, Horovod
    does not fuse a group with other tensors. Otherwise, Horovod fuses a group with any tensors that happen to be
    waiting, which changes the rounding of sums.
    """
    if not may_fuse:
        os.environ.setdefault("HOROVOD_DISABLE_GROUP_FUSION", "1")
    if lengths_vary:
        os.environ.setdefault("HOROVOD_CACHE_CAPACITY", "0")
    hvd.init()
    return hvd.rank(), hvd.size()


def start_store() -> int:
    """Starts the store that Horovod's ranks use to find each other without MPI. The store runs in this process. Returns
    its port."""
    from horovod.runner.http.http_server import RendezvousServer

    store = RendezvousServer()
    port: int = store.start()
    store.init([])
    return port


def gloo_by() -> str | None:
    """Returns the environment variable that makes Horovod connect the ranks through Gloo, or None if there is none.
    This function can be called before `init`."""
    return next((name for name in CONTROLLERS if os.environ.get(name, "").lower() == "gloo"), None)


def runs_over_mpi() -> bool:
    """Returns whether MPI rather than Gloo connects the ranks. Call this function only after `init`."""
    return bool(hvd.mpi_built() and hvd.mpi_enabled())


def rank_op(name: str | None = None) -> tf.Tensor:
    """Returns a scalar int32 tensor with this process's rank, which is read when the op runs. The op raises
    FailedPreconditionError before `init`."""
    return hvd.rank_op(name=name)


def size_op(name: str | None = None) -> tf.Tensor:
    """Returns a scalar int32 tensor with the number of ranks, which is read when the op runs."""
    return hvd.size_op(name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Returns a scalar int32 tensor with this process's rank among the ranks on its host, which is read when the op
    runs."""
    return hvd.local_rank_op(name=name)


def local_rank() -> int:
    """Returns this process's rank among the ranks on its host. Raises ValueError before `init`."""
    return hvd.local_rank()


def sum_of_one(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Returns the element-wise sum of one tensor over ranks. The tensor's shape may be known only at run time."""
    return hvd._allreduce(tensor, name=name, op=hvd.Sum)


def sum_over_ranks(tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
    """Returns the element-wise sums over ranks of tensors with static shapes, in one fused exchange for each dtype.

    Grouping ensures that the same tensors are fused, and rounded in the same way, in every step and run.
    """
    groups: dict[tf.DType, list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        groups[tensor.dtype].append(index)
    sums: list[tf.Tensor] = list(tensors)
    for dtype, members in groups.items():
        results = hvd._grouped_allreduce([tensors[index] for index in members], name=f"{name}/{dtype.name}", op=hvd.Sum)
        for index, result in zip(members, results, strict=True):
            sums[index] = result
    return sums


def concat_over_ranks(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Concatenates the tensors of all ranks, in rank order. First dimensions may differ."""
    return _as_carried(tensor, lambda carried: hvd.allgather(carried, name=name))


def all_to_all(tensor: tf.Tensor, counts: tf.Tensor, *, name: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends the first `counts[0]` rows to rank 0, the next `counts[1]` to rank 1, and so on (counts: int32 [ranks]).

    Returns the received rows, ordered by the sender's rank, and the number of rows from each rank.
    """
    came_counts: list[tf.Tensor] = []

    def exchange(carried: tf.Tensor) -> tf.Tensor:
        came, received = hvd.alltoall(carried, splits=counts, name=name)
        came_counts.append(received)
        return came

    return _as_carried(tensor, exchange), came_counts[0]


def from_chief(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Returns rank 0's tensor on every rank. The shape must be the same on all ranks."""
    return _as_carried(tensor, lambda carried: hvd.broadcast(carried, 0, name=name))


def _as_carried(tensor: tf.Tensor, move: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Applies `move`, which only moves bits, to a tensor whose dtype Horovod may not support."""
    carrier = CARRIERS.get(tensor.dtype)
    return move(tensor) if carrier is None else tf.bitcast(move(tf.bitcast(tensor, carrier)), tensor.dtype)
