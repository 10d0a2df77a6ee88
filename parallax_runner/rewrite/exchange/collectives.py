"""What ranks do together. The only import of Horovod: replace the collectives by replacing this file."""

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
    """`horovod.tensorflow.mpi_ops` without the package around it, which derives from a Keras layer: importing Keras
    would make a process's imports half as long again. A script's own `import horovod.tensorflow` finds all of it."""
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
# What Horovod does not know travels under the name of what it knows of the same size.
CARRIERS = {tf.bfloat16: tf.float16}


def init(*, lengths_vary: bool = False, may_fuse: bool = True) -> tuple[int, int]:
    """Joins the other ranks; returns (rank, size).

    Where the lengths of what is exchanged vary from step to step, Horovod's cache of what all ranks have ready never
    has it, and asking it is one exchange more each time: it is off then, unless the user says otherwise. Unless it
    `may_fuse`, Horovod sends no group together with others, as it would by who happens to wait, and rounds sums by it.
    """
    if not may_fuse:
        os.environ.setdefault("HOROVOD_DISABLE_GROUP_FUSION", "1")
    if lengths_vary:
        os.environ.setdefault("HOROVOD_CACHE_CAPACITY", "0")
    hvd.init()
    return hvd.rank(), hvd.size()


def start_store() -> int:
    """Starts, in this process, the store by which Horovod's ranks find each other without MPI; returns its port."""
    from horovod.runner.http.http_server import RendezvousServer

    store = RendezvousServer()
    port: int = store.start()
    store.init([])
    return port


def runs_over_mpi() -> bool:
    """Whether MPI, and not Gloo, connects the ranks; asked after `init`."""
    return bool(hvd.mpi_built() and hvd.mpi_enabled())


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank, when the op runs (scalar, int32); FailedPreconditionError before `init`."""
    return hvd.rank_op(name=name)


def size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks, when the op runs (scalar, int32)."""
    return hvd.size_op(name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank among those of its host, when the op runs (scalar, int32)."""
    return hvd.local_rank_op(name=name)


def local_rank() -> int:
    """This process's rank among those of its host; ValueError before `init`."""
    return hvd.local_rank()


def sum_of_one(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Element-wise sum over ranks of one tensor; its shape may be known only when it runs."""
    return hvd._allreduce(tensor, name=name, op=hvd.Sum)


def sum_over_ranks(tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
    """Element-wise sums over ranks of tensors with static shapes, fused into one exchange a dtype.

    Grouped, so that what is fused with what, and with it the rounding, is the same in every step and run.
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
    """The ranks' tensors one after the other, in rank order; first dimensions may differ."""
    return _as_carried(tensor, lambda carried: hvd.allgather(carried, name=name))


def all_to_all(tensor: tf.Tensor, counts: tf.Tensor, *, name: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends the first `counts[0]` rows to rank 0, the next `counts[1]` to rank 1, and so on (counts: int32 [ranks]).

    Returns what came, in rank order of its senders, and how many rows each of them sent.
    """
    came_counts: list[tf.Tensor] = []

    def exchange(carried: tf.Tensor) -> tf.Tensor:
        came, received = hvd.alltoall(carried, splits=counts, name=name)
        came_counts.append(received)
        return came

    return _as_carried(tensor, exchange), came_counts[0]


def from_chief(tensor: tf.Tensor, *, name: str) -> tf.Tensor:
    """Rank 0's tensor, on every rank; shapes must agree."""
    return _as_carried(tensor, lambda carried: hvd.broadcast(carried, 0, name=name))


def _as_carried(tensor: tf.Tensor, move: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """What `move`, which only moves bits, makes of a tensor, also of one of a dtype that Horovod does not know."""
    carrier = CARRIERS.get(tensor.dtype)
    return move(tensor) if carrier is None else tf.bitcast(move(tf.bitcast(tensor, carrier)), tensor.dtype)
