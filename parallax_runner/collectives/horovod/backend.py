"""What Horovod can send, and the environment variables that configure it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from parallax_runner.collectives.backend import Backend, Lack
from parallax_runner.errors import CollectiveError

if TYPE_CHECKING:
    from parallax_runner.collectives.backend_ops import BackendOps

INSTALL = "install Horovod (scripts/setup --horovod)"
# Variables that make Horovod run without MPI if their value is "gloo".
CONTROLLERS = ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")
GLOO = "gloo"
# Horovod's thread looks for new tensors once per cycle (by default, each millisecond), and the exchanges of a step wait
# for one another. On one machine, shorter cycles make steps shorter (docs/benchmarks.md). Over links, they do not.
LOOK_OFTEN = {"HOROVOD_CYCLE_TIME": "0.25"}
# Dtypes with kernels in Horovod 0.28 (horovod/tensorflow/mpi_ops.cc), and bfloat16, which is sent as other dtypes
# (ops.py here, rewrite/exchange/sum_dtype.py).
INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64")
FLOATS = ("bfloat16", "float16", "float32", "float64")


class Horovod(Backend):
    """Horovod 0.28."""

    title = "Horovod"
    package = "horovod"
    op_types = r"Horovod\w+"
    sent_dtypes = frozenset([*INTEGERS, *FLOATS])
    variables = ("HOROVOD_",)
    threads_remedy = "unset HOROVOD_MPI_THREADS_DISABLE"

    def lack(self) -> Lack | None:
        """Returns that Horovod is not installed, or None."""
        if importlib.util.find_spec(self.package) is not None:
            return None
        return Lack("Horovod is not installed", INSTALL)

    def ops(self) -> BackendOps:
        """Imports TensorFlow and Horovod, and returns the ops. Raises CollectiveError if Horovod is not installed."""
        lack = self.lack()
        if lack is not None:
            raise CollectiveError(lack.reason).about(remedy=lack.remedy)
        from parallax_runner.collectives.horovod.ops import OPS

        return OPS

    def without_mpi_by(self, environ: Mapping[str, str]) -> str | None:
        """Returns the variable that chooses Gloo, or None."""
        return next((name for name in CONTROLLERS if environ.get(name, "").lower() == GLOO), None)

    def beside_each_other(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns the variable that sets Horovod's cycle time in ms, unless the user sets it."""
        return {name: value for name, value in LOOK_OFTEN.items() if name not in environ}

    def without_mpirun(self, hosts: Sequence[str]) -> list[dict[str, str]]:
        """Returns, for each rank, the variables that Horovod's Gloo needs.

        They choose Gloo even if the user's code initializes Horovod first. They contain the rank, its local rank among
        the ranks on its host, and its cross rank among the ranks with the same local rank on all hosts, each with the
        number of these ranks.
        """
        local_ranks = [list(hosts[:rank]).count(host) for rank, host in enumerate(hosts)]
        found = []
        for rank, (host, local_rank) in enumerate(zip(hosts, local_ranks, strict=True)):
            peers = [other for other, number in zip(hosts, local_ranks, strict=True) if number == local_rank]
            place = {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(len(hosts)),
                "HOROVOD_LOCAL_RANK": str(local_rank),
                "HOROVOD_LOCAL_SIZE": str(list(hosts).count(host)),
                "HOROVOD_CROSS_RANK": str(peers.index(host)),
                "HOROVOD_CROSS_SIZE": str(len(peers)),
                "HOROVOD_HOSTNAME": host,
            }
            found.append({**place, **dict.fromkeys(CONTROLLERS, GLOO)})
        return found

    @property
    def note_without_mpirun(self) -> str:
        """Tells that Gloo is slower. The fractions are relative to the throughput of two processes that exchange
        nothing (docs/clusters.md)."""
        return (
            "without mpirun, Horovod exchanges gradients with Gloo, which is slower than MPI: two ranks on one machine "
            "reached 0.74 of the throughput of two independent processes with Gloo, and 0.89 with MPI"
        )
