"""The `manual` launcher: workers and servers run in processes that the user or another program starts, in any order."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Self

from parallax_runner.collectives.chosen import backend
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.worker_numbers import is_elastic
from parallax_runner.errors import ConfigError
from parallax_runner.launch import bind_address, preloaded, remote
from parallax_runner.launch.control import wire
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.launchers.launcher import Launcher, Leaving
from parallax_runner.launch.launchers.manual.claim_table import Claim
from parallax_runner.launch.launchers.manual.claimed_membership import ClaimedMembership
from parallax_runner.launch.launchers.manual.claims import Claims, Sizes, claims_at
from parallax_runner.launch.launchers.manual.remote_stand_in import LOST
from parallax_runner.launch.launchers.manual.rendezvous import EXPECTED, KEY, split_address
from parallax_runner.launch.launchers.membership import Membership
from parallax_runner.plan.plan import Plan

KEYS_OF_SIZES = ("min_workers", "max_workers", "wait_secs")
STAND_IN = (sys.executable, "-m", "parallax_runner.launch.launchers.manual.remote_stand_in")


class Manual(Launcher):
    """Each worker or server is a standby process, usually on another machine. A stand-in on this machine represents
    it. Ranks find each other without MPI."""

    lost_exit_status = LOST
    own_keys: ClassVar[tuple[str, ...]] = ("rendezvous", "rendezvous_timeout_secs", *KEYS_OF_SIZES)
    keys_are_for = "processes that you start yourself"
    has_options = False
    processes_stand_by = True
    without_mpirun = True
    changes_size = True

    def __init__(
        self,
        rendezvous: str,
        timeout_secs: float,
        run_dir: str,
        workers: int,
        servers: int,
        *,
        replace_secs: float | None = None,
        is_elastic: bool = False,
    ) -> None:
        self._rendezvous, self._timeout_secs, self._run_dir = rendezvous, timeout_secs, run_dir
        self._replace_secs, self._is_elastic = replace_secs, is_elastic
        self._wanted = {"worker": workers, "server": servers}
        self._claimed: dict[str, list[Claim]] = {}

    @classmethod
    def from_config(cls, config: RunConfig, plan: Plan) -> Self:
        """Returns the launcher without waiting for the processes. `check` waits for them later."""
        cluster = config.cluster
        return cls(
            str(cluster.rendezvous),
            cluster.rendezvous_timeout_secs,
            config.run_dir,
            plan.workers,
            plan.servers,
            is_elastic=is_elastic(config),
        )

    @classmethod
    def membership(cls, config: RunConfig, plan: Plan) -> Membership:
        """Returns the processes that stand by."""
        return cls._claimed_by(str(config.cluster.rendezvous), config, plan)

    @staticmethod
    def _claimed_by(rendezvous: str, config: RunConfig, plan: Plan) -> ClaimedMembership:
        cluster = config.cluster
        return ClaimedMembership(
            claims_at(rendezvous),
            config.run_dir,
            Sizes(plan.worker_numbers, plan.servers),
            timeout_secs=cluster.rendezvous_timeout_secs,
            unused_servers=cluster.servers,
        )

    @classmethod
    def check_config(cls, config: RunConfig, origins: Origins) -> None:
        """Raises ConfigError for an invalid address, or for settings that contradict it."""
        cluster = config.cluster
        if cluster.rendezvous is None:
            raise refusal(KEY, origins, EXPECTED, value=None)
        try:
            split_address(cluster.rendezvous)
        except ConfigError as error:
            raise refusal(KEY, origins, str(error)) from error
        if cluster.resource_info is not None:
            needed = "under cluster=manual you choose the host of each process; omit this key"
            raise refusal("cluster.resource_info", origins, needed, value=cluster.resource_info)
        if mode_of(config.comm).is_one_process:
            needed = "this mode runs one process, which the driver starts itself"
            raise refusal("comm.name", origins, needed, value=config.comm.name, hint="cluster=local")

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
        processes. If the number of workers changes, the membership has waited for them."""
        if self._is_elastic:
            self._claimed = self._claims.in_order(self._wanted)
            return
        self._claimed = self._claims.gather(
            self._run_dir, self._wanted, self._timeout_secs, stopped, replace_secs=self._replace_secs
        )

    def leaving(self) -> Leaving | None:
        """Returns the first claimed process that has said that it must end, or None."""
        for role, claims in self._claimed.items():
            for index, claim in enumerate(claims):
                secs = self._claims.leaves_in_secs(claim)
                if secs is not None:
                    return Leaving(role, index, claim.entry.host, secs)
        return None

    def workers(self, job: Job, cleanup: ExitStack) -> list[Command]:
        """Returns the command of one stand-in per worker."""
        claims = self._claimed["worker"]
        places = backend().without_mpirun([claim.entry.host for claim in claims])
        commands = []
        for rank, (claim, place) in enumerate(zip(claims, places, strict=True)):
            env = {**place, wire.WITHOUT_MPIRUN: "1", wire.RANK: str(rank)}
            commands.append(self._stand_in(claim, f"worker {rank}", job, job.worker_argv(), env))
        return commands

    def servers(self, job: Job) -> list[Command]:
        """Returns the command of one stand-in per server."""
        return [
            self._stand_in(claim, f"server {index}", job, job.server_argv(index), {})
            for index, claim in enumerate(self._claimed["server"])
        ]

    def _stand_in(self, claim: Claim, name: str, job: Job, argv: list[str], env: dict[str, str]) -> Command:
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
        return Command([*STAND_IN], {}, json.dumps(told).encode())
