"""The ops of `libcollectives.so`."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.collectives.backend import NOTHING_AWAITED, Awaited
from parallax_runner.collectives.backend_ops import BackendOps, ListenOn, Meeting
from parallax_runner.collectives.native.library import HOROVOD, library
from parallax_runner.collectives.native.row_kernels import NativeRowKernels
from parallax_runner.collectives.streams import current_stream
from parallax_runner.errors import CollectiveError

# A heartbeat contains the name of an exchange up to this length.
SHOWN_NAME_BYTES = 200


@cache
def native_ops() -> NativeOps:
    """Loads the library into this process, and returns its ops. Raises CollectiveError if that fails."""
    path = str(library())
    try:
        return NativeOps(tf.load_op_library(path), ctypes.CDLL(path))
    except (OSError, tf.errors.OpError) as error:
        raise CollectiveError(f"{path}: the native exchanges cannot be loaded: {error}").about(
            remedy=f"remove this file, or {HOROVOD}"
        ) from error


class NativeOps(BackendOps):
    """Ops whose messages match by their key, which is the name of the op in the graph."""

    def __init__(self, ops: Any, library: ctypes.CDLL) -> None:
        self._ops, self._library = ops, library
        self.row_kernels = NativeRowKernels(ops)
        self._library.parallax_join.restype = ctypes.c_char_p
        self._library.parallax_sleeps.restype = ctypes.c_int64

    def join(self, *, lengths_vary: bool, may_fuse: bool) -> tuple[int, int]:
        """Joins the other ranks, and returns (rank, size). No message is fused with others, so the arguments change
        nothing."""
        error = self._library.parallax_join()
        if error is not None:
            raise CollectiveError(error.decode()).about(remedy=HOROVOD)
        atexit.register(self._library.parallax_leave)
        return self._library.parallax_rank(), self._library.parallax_size()

    def met(self, meeting: Meeting, listen_on: ListenOn) -> AbstractContextManager[None]:
        """Raises CollectiveError: ranks find each other through MPI only."""
        raise CollectiveError("the native exchanges need ranks that mpirun starts").about(remedy=HOROVOD)

    def connects_by_mpi(self) -> bool:
        """Returns True."""
        return True

    def rank_op(self, name: str | None) -> tf.Tensor:
        """Returns this process's rank (int32 scalar)."""
        return self._ops.parallax_place(place="rank", name=name)

    def size_op(self, name: str | None) -> tf.Tensor:
        """Returns the number of ranks (int32 scalar)."""
        return self._ops.parallax_place(place="size", name=name)

    def local_rank_op(self, name: str | None) -> tf.Tensor:
        """Returns this process's rank on its host (int32 scalar)."""
        return self._ops.parallax_place(place="local_rank", name=name)

    def local_rank(self) -> int:
        """Returns this process's rank on its host."""
        return int(self._library.parallax_local_rank())

    def transfers(self) -> int:
        """Returns how many sends and receives of this process are under way."""
        return int(self._library.parallax_transfers())

    def early(self) -> int:
        """Returns how many messages have come for exchanges that this process has not begun."""
        return int(self._library.parallax_early())

    def sleeps(self) -> int:
        """Returns how often the thread of the exchanges has slept. Each sleep takes CPU time."""
        return int(self._library.parallax_sleeps())

    def awaited(self) -> Awaited:
        """Returns the ranks from which nothing has come for exchanges that this process began 5 s ago."""
        ranks = (ctypes.c_int * self._library.parallax_size())()
        exchange = ctypes.create_string_buffer(SHOWN_NAME_BYTES)
        count = self._library.parallax_awaited(ranks, exchange, SHOWN_NAME_BYTES)
        if count == 0:
            return NOTHING_AWAITED
        return Awaited(tuple(ranks[:count]), exchange.value.decode(errors="replace"))

    def sum(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the element-wise sum over the ranks, added in rank order."""
        return self.sum_group([tensor], name)[0]

    def sum_group(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Returns the element-wise sums over the ranks, added in rank order, in one exchange."""
        sums: list[tf.Tensor] = _with_key(self._ops.parallax_sum(values=list(tensors), name=name))
        return sums

    def gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Concatenates the tensors of all ranks."""
        return _with_key(self._ops.parallax_gather(rows=tensor, name=name))

    def all_to_all(self, tensor: tf.Tensor, counts: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends `counts[r]` rows to each rank r."""
        came, received = _with_key(self._ops.parallax_all_to_all(rows=tensor, counts=counts, name=name))
        return came, received

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns rank 0's tensor."""
        return _with_key(self._ops.parallax_broadcast(value=tensor, name=name))


def _with_key(outputs: Any) -> Any:
    """Gives the op of these outputs its stream, and its name in the graph as its key, which stays if the graph is
    rewritten."""
    first = outputs if isinstance(outputs, tf.Tensor) else outputs[0]
    first.op._set_attr("key", tf.AttrValue(s=first.op.name.encode()))
    stream = current_stream()
    first.op._set_attr("stream", tf.AttrValue(s=stream.name.encode()))
    first.op._set_attr("deadline_steps", tf.AttrValue(i=stream.deadline_steps))
    return outputs
