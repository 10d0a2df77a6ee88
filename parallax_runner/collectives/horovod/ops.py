"""Horovod's ops. This is the only file that imports Horovod."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType, ModuleType

import horovod
import tensorflow.compat.v1 as tf

from parallax_runner.collectives.backend_ops import BackendOps, ListenOn, Meeting
from parallax_runner.collectives.horovod import gloo


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


class HorovodOps(BackendOps):
    """Horovod's ops. Horovod matches calls by name, so the order of its calls does not matter."""

    carriers = MappingProxyType({tf.bfloat16: tf.float16})

    def join(self, *, lengths_vary: bool, may_fuse: bool) -> tuple[int, int]:
        """Joins the other ranks, and returns (rank, size).

        If the lengths of messages change from step to step, Horovod's response cache never hits, and each lookup costs
        an exchange, so the cache is turned off unless the user configures it.
        """
        if not may_fuse:
            os.environ.setdefault("HOROVOD_DISABLE_GROUP_FUSION", "1")
        if lengths_vary:
            os.environ.setdefault("HOROVOD_CACHE_CAPACITY", "0")
        hvd.init()
        return hvd.rank(), hvd.size()

    def met(self, meeting: Meeting, listen_on: ListenOn) -> AbstractContextManager[None]:
        """Returns a context in which `join` finds the other ranks through Gloo and Horovod's own store."""
        return gloo.ranks_found(meeting, listen_on, _start_store)

    def connects_by_mpi(self) -> bool:
        """Returns whether MPI rather than Gloo connects the ranks."""
        return bool(hvd.mpi_built() and hvd.mpi_enabled())

    def rank_op(self, name: str | None) -> tf.Tensor:
        """Returns this process's rank (int32 scalar)."""
        return hvd.rank_op(name=name)

    def size_op(self, name: str | None) -> tf.Tensor:
        """Returns the number of ranks (int32 scalar)."""
        return hvd.size_op(name=name)

    def local_rank_op(self, name: str | None) -> tf.Tensor:
        """Returns this process's rank among the ranks on its host (int32 scalar)."""
        return hvd.local_rank_op(name=name)

    def local_rank(self) -> int:
        """Returns this process's rank among the ranks on its host. Raises ValueError before `join`."""
        return int(hvd.local_rank())

    def sum(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the element-wise sum over the ranks."""
        return hvd._allreduce(tensor, name=name, op=hvd.Sum)

    def sum_group(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Returns the element-wise sums over the ranks, in one exchange."""
        sums: list[tf.Tensor] = hvd._grouped_allreduce(list(tensors), name=name, op=hvd.Sum)
        return sums

    def gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Concatenates the tensors of all ranks."""
        return hvd.allgather(tensor, name=name)

    def all_to_all(self, tensor: tf.Tensor, counts: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends `counts[r]` rows to each rank r."""
        came, received = hvd.alltoall(tensor, splits=counts, name=name)
        return came, received

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns rank 0's tensor."""
        return hvd.broadcast(tensor, 0, name=name)


OPS = HorovodOps()


def _start_store() -> int:
    """Starts the store that Horovod's ranks use to find each other without MPI. The store runs in this process. Returns
    its port."""
    from horovod.runner.http.http_server import RendezvousServer

    store = RendezvousServer()
    port: int = store.start()
    store.init([])
    return port
