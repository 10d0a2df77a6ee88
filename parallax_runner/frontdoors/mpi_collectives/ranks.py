"""Ops that return this process's rank and the number of ranks. MPI need not be initialized while a graph is built."""

from __future__ import annotations

import os

import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops as collectives
from parallax_runner.collectives.chosen import backend
from parallax_runner.errors import CollectiveError


def init(name: str | None = None) -> tf.Operation:
    """Returns an op that joins the other ranks. `Session` joins the ranks automatically. Joining again does nothing."""
    return tf.numpy_function(join, [], [], name=name or "mpi_init")


def size(name: str | None = None) -> tf.Tensor:
    """Returns the number of ranks (scalar, int32). Before `init`, this op and the ops below fail with
    FailedPreconditionError."""
    return collectives.size_op(name=name)


def rank(name: str | None = None) -> tf.Tensor:
    """Returns this process's rank, counted from 0 (scalar, int32)."""
    return collectives.rank_op(name=name)


def local_rank(name: str | None = None) -> tf.Tensor:
    """Returns this process's rank among the ranks on its host, counted from 0 (scalar, int32)."""
    return collectives.local_rank_op(name=name)


def join() -> None:
    """Joins the other ranks. Raises CollectiveError if Gloo connects them instead of MPI."""
    variable = backend().without_mpi_by(os.environ)
    if variable is not None:
        raise CollectiveError(
            f"mpi_collectives needs MPI, but {variable}=gloo connects the ranks through Gloo, as cluster=manual does: "
            "start the script with mpirun and without this variable"
        )
    collectives.join()
    if not collectives.runs_over_mpi():
        raise CollectiveError(
            f"mpi_collectives needs MPI, but {backend().title} has connected the ranks without MPI: start the script "
            "with mpirun"
        )
