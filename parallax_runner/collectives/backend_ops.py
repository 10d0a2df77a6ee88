"""The ops of a backend. `ops.py` builds on them what the rest of the package uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Protocol

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.backend import NOTHING_AWAITED, Awaited


class Meeting(Protocol):
    """The connection through which ranks find each other if no mpirun starts them."""

    @property
    def own_address(self) -> str:
        """This host's address on its route to the other hosts."""

    def publish_store(self, address: str) -> None:
        """Sends the `host:port` of rank 0's store to all ranks."""

    def store_address(self) -> str:
        """Blocks until rank 0 has published the store's `host:port`, and returns it."""


# Takes an address of this host, and makes the libraries in this process listen on this address only.
ListenOn = Callable[[str], AbstractContextManager[None]]


class BackendOps(ABC):
    """Exchanges among all ranks.

    All ranks build the same ops in the same order. An exchange matches the exchange of another rank by the name of its
    op, which TensorFlow has made unique in the graph. Ranks can run exchanges in different orders.

    `carriers` maps a dtype that the library cannot move to a dtype of the same size that it can move.
    """

    carriers: Mapping[tf.DType, tf.DType] = MappingProxyType({})

    @abstractmethod
    def join(self, *, lengths_vary: bool, may_fuse: bool) -> tuple[int, int]:
        """Joins the other ranks. Returns (rank, number of ranks). Joining again does nothing.

        `lengths_vary` means that the lengths of messages change from step to step. Without `may_fuse`, a group of
        tensors is never summed together with other tensors, which would change the rounding of sums.
        """

    @abstractmethod
    def met(self, meeting: Meeting, listen_on: ListenOn) -> AbstractContextManager[None]:
        """Returns a context in which `join` finds the other ranks without MPI. Blocks until rank 0 has come."""

    @abstractmethod
    def connects_by_mpi(self) -> bool:
        """Returns whether MPI connects the ranks. Call this method only after `join`."""

    @abstractmethod
    def rank_op(self, name: str | None) -> tf.Tensor:
        """Returns this process's rank (int32 scalar), read when the op runs. The op raises FailedPreconditionError
        before `join`."""

    @abstractmethod
    def size_op(self, name: str | None) -> tf.Tensor:
        """Returns the number of ranks (int32 scalar), read when the op runs."""

    @abstractmethod
    def local_rank_op(self, name: str | None) -> tf.Tensor:
        """Returns this process's rank among the ranks on its host (int32 scalar), read when the op runs."""

    @abstractmethod
    def local_rank(self) -> int:
        """Returns this process's rank among the ranks on its host. Raises ValueError before `join`."""

    def awaited(self) -> Awaited:
        """Returns which ranks exchanges of this process have waited for during a long time, as far as the library
        knows. Any thread can call this method after `join`."""
        return NOTHING_AWAITED

    @abstractmethod
    def sum(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the element-wise sum of a tensor over the ranks. Its shape is the same on all ranks, but may be known
        only when the op runs."""

    @abstractmethod
    def sum_group(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Returns the element-wise sums of tensors with static shapes and one dtype, in one exchange."""

    @abstractmethod
    def gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Concatenates the tensors of all ranks along the first dimension, in rank order. First dimensions may
        differ."""

    @abstractmethod
    def all_to_all(self, tensor: tf.Tensor, counts: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends the first `counts[0]` rows to rank 0, the next `counts[1]` to rank 1, and so on (counts: int32
        [ranks]). Returns the received rows, ordered by the sender's rank, and the number of rows from each rank."""

    @abstractmethod
    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns rank 0's tensor on every rank. The shape is the same on all ranks."""
