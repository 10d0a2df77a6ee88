"""Who this process is among the ranks, as ops: nothing needs to be initialised while a graph is built."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.exchange import collectives


def init(name: str | None = None) -> tf.Operation:
    """An op that joins the other ranks; `Session` does it by itself. A second time does nothing."""
    return tf.numpy_function(_join, [], [], name=name or "mpi_init")


def size(name: str | None = None) -> tf.Tensor:
    """The number of ranks (scalar, int32). Before `init` it fails with FailedPreconditionError, as do the others."""
    return collectives.size_op(name=name)


def rank(name: str | None = None) -> tf.Tensor:
    """This process's number among all, from 0 (scalar, int32)."""
    return collectives.rank_op(name=name)


def local_rank(name: str | None = None) -> tf.Tensor:
    """This process's number among those of its host, from 0 (scalar, int32)."""
    return collectives.local_rank_op(name=name)


def _join() -> None:
    collectives.init()
