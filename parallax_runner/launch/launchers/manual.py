"""The `manual` launcher: workers and servers run in processes that the user or another program starts, in any order."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from parallax_runner.config.schema import RunConfig
from parallax_runner.launch import bind_address, preloaded, remote
from parallax_runner.launch.control import wire
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.launchers.launcher import Launcher
from parallax_runner.launch.manual.claims import Claim, Claims, claims_at
from parallax_runner.launch.manual.seat import LOST
from parallax_runner.plan.plan import Plan

# Each worker's Horovod uses Gloo from the start, even if the user's code initializes Horovod first.
BY_GLOO = {wire.GLOO: "1", "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
SEAT = (sys.executable, "-m", "parallax_runner.launch.manual.seat")


class Manual(Launcher):
    """Each worker or server is a standby process, usually on another machine. A seat process on this machine represents
    it. Ranks connect to each other through Gloo."""

    lost_exit_status = LOST

    def __init__(self, rendezvous: str, timeout_secs: float, run_dir: str, workers: int, servers: int) -> None:
        self._rendezvous, self._timeout_secs, self._run_dir = rendezvous, timeout_secs, run_dir
        self._wanted = {"worker": workers, "server": servers}
        self._claimed: dict[str, list[Claim]] = {}

    @classmethod
    def from_config(cls, config: RunConfig, plan: Plan) -> Self:
        """Returns the launcher without waiting for the processes. `check` waits for them later."""
        cluster = config.cluster
        return cls(str(cluster.rendezvous), cluster.rendezvous_timeout_secs, config.run_dir, plan.workers, plan.servers)

    @classmethod
    def unfit(cls, config: RunConfig, comm: str) -> str | None:
        """If the configuration needs MPI, returns why this launcher is unsuitable. Otherwise, returns None."""
        if config.comm.mpi.use_allgatherv:
            return (
                "comm.mpi.use_allgatherv needs MPI, but this launcher's workers use Gloo; omit comm.mpi.use_allgatherv"
            )
        if config.comm.mpi.mpirun_options:
            return "it does not use mpirun; omit comm.mpi.mpirun_options"
        return None

    @property
    def address(self) -> str:
        """This machine's address on the network of the claimed processes."""
        return self._claims.own_address

    @property
    def _claims(self) -> Claims:
        return claims_at(self._rendezvous)

    def check(self, folders: Sequence[Path], stopped: Callable[[], bool]) -> None:
        """Waits until all processes have registered. After the timeout, raises LaunchError, which names the missing
        processes."""
        self._claimed = self._claims.gather(self._run_dir, self._wanted, self._timeout_secs, stopped)

    def workers(self, job: Job, cleanup: ExitStack) -> list[Command]:
        """Returns one seat command per worker."""
        places = horovod_places([claim.entry.host for claim in self._claimed["worker"]])
        return [
            self._seat(claim, f"worker {rank}", job, job.worker_argv(), {**place, **BY_GLOO, wire.RANK: str(rank)})
            for rank, (claim, place) in enumerate(zip(self._claimed["worker"], places, strict=True))
        ]

    def servers(self, job: Job) -> list[Command]:
        """Returns one seat command per server."""
        return [
            self._seat(claim, f"server {index}", job, job.server_argv(index), {})
            for index, claim in enumerate(self._claimed["server"])
        ]

    def _seat(self, claim: Claim, name: str, job: Job, argv: list[str], env: dict[str, str]) -> Command:
        start = {
            "token": claim.token,
            "argv": argv,
            "env": {
                **remote.passed_on(),
                **job.env,
                **env,
                **preloaded.environment({}),
                bind_address.TOWARDS: self.address,
            },
            "cwd": os.getcwd(),
        }
        told = {
            "name": f"{name} ({claim.entry})",
            "address": claim.entry.address,
            "secret": self._claims.store.secret.decode(),
            "start": start,
        }
        return Command([*SEAT], {}, json.dumps(told).encode())


def horovod_places(hosts: Sequence[str]) -> list[dict[str, str]]:
    """Returns, for each rank, the variables that Horovod's Gloo needs. They contain the rank, its local rank among the
    ranks on its host, and its cross rank among the ranks with the same local rank on all hosts, each with the number of
    these ranks. `hosts` contains the host of each rank."""
    local_ranks = [list(hosts[:rank]).count(host) for rank, host in enumerate(hosts)]
    places = []
    for rank, (host, local_rank) in enumerate(zip(hosts, local_ranks, strict=True)):
        peers = [other for other, number in zip(hosts, local_ranks, strict=True) if number == local_rank]
        places.append(
            {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(len(hosts)),
                "HOROVOD_LOCAL_RANK": str(local_rank),
                "HOROVOD_LOCAL_SIZE": str(list(hosts).count(host)),
                "HOROVOD_CROSS_RANK": str(peers.index(host)),
                "HOROVOD_CROSS_SIZE": str(len(peers)),
                "HOROVOD_HOSTNAME": host,
            }
        )
    return places
