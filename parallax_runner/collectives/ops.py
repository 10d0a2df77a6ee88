"""The exchanges that graphs use. Each runs on all ranks, through the backend of the process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.chosen import backend


def join(*, lengths_vary: bool = False, may_fuse: bool = True) -> tuple[int, int]:
    """Joins the other ranks, and returns (rank, size).

    With `lengths_vary`, the lengths of messages change from step to step. Without `may_fuse`, the backend does not fuse
    a group with other tensors. Otherwise, it may fuse a group with any tensors that happen to be waiting, which changes
    the rounding of sums.
    """
    return backend().ops().join(lengths_vary=lengths_vary, may_fuse=may_fuse)


def runs_over_mpi() -> bool:
    """Returns whether MPI connects the ranks. Call this function only after `join`."""
    return backend().ops().connects_by_mpi()


def rank_op(name: str | None = None) -> tf.Tensor:
    """Returns a scalar int32 tensor with this process's rank, which is read when the op runs. The op raises
    FailedPreconditionError before `join`."""
    return backend().ops().rank_op(name)


def size_op(name: str | None = None) -> tf.Tensor:
    """Returns a scalar int32 tensor with the number of ranks, which is read when the op runs."""
    return backend().ops().size_op(name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Returns a scalar int32 tensor with this process's rank among the ranks on its host, which is read when the op
    runs."""
    return backend().ops().local_rank_op(name)


def local_rank() -> int:
    """Returns this process's rank among the ranks on its host. Raises ValueError before `join`."""
    return backend().ops().local_rank()


def sum_of_one(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Returns the element-wise sum of one tensor over ranks. The tensor's shape may be known only at run time."""
    return backend().ops().sum(tensor, name)


def sum_over_ranks(tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
    """Returns the element-wise sums over ranks of tensors with static shapes, in one fused exchange for each dtype.

    Grouping ensures that the same tensors are fused, and rounded in the same way, in every step and run.
    """
    groups: dict[tf.DType, list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        groups[tensor.dtype].append(index)
    sums: list[tf.Tensor] = list(tensors)
    for dtype, members in groups.items():
        results = backend().ops().sum_group([tensors[index] for index in members], f"{name}/{dtype.name}")
        for index, result in zip(members, results, strict=True):
            sums[index] = result
    return sums


def concat_over_ranks(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Concatenates the tensors of all ranks, in rank order. First dimensions may differ."""
    return _as_carried(tensor, lambda carried: backend().ops().gather(carried, name))


def all_to_all(tensor: tf.Tensor, counts: tf.Tensor, *, name: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends the first `counts[0]` rows to rank 0, the next `counts[1]` to rank 1, and so on (counts: int32 [ranks]).

    Returns the received rows, ordered by the sender's rank, and the number of rows from each rank.
    """
    came_counts: list[tf.Tensor] = []

    def exchange(carried: tf.Tensor) -> tf.Tensor:
        came, received = backend().ops().all_to_all(carried, counts, name)
        came_counts.append(received)
        return came

    return _as_carried(tensor, exchange), came_counts[0]


def from_chief(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Returns rank 0's tensor on every rank. The shape must be the same on all ranks."""
    return _as_carried(tensor, lambda carried: backend().ops().broadcast(carried, name))


def _as_carried(tensor: tf.Tensor, move: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Applies `move`, which only moves bits, to a tensor whose dtype the backend may not support."""
    carrier = backend().ops().carriers.get(tensor.dtype)
    return move(tensor) if carrier is None else tf.bitcast(move(tf.bitcast(tensor, carrier)), tensor.dtype)
