"""What a launcher is: the one interface by which the driver starts the processes of a run and asks how they ended."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from parallax_runner.config.schema import RunConfig
from parallax_runner.launch import bind_address
from parallax_runner.launch.control import wire
from parallax_runner.launch.job import Command, Job
from parallax_runner.plan.plan import Plan


@dataclass(frozen=True)
class RankExit:
    """How a worker ended; `exit_status` as subprocess has it: minus the signal number for a death by signal."""

    rank: int
    exit_status: int


class Launcher(ABC):
    """Starts workers and servers of one run. `cluster.launcher` names the subclass: docs/design/0044.

    A launcher starts nothing itself: it returns commands. The driver executes them, each in a session of its own, with
    its output in a log; it watches the processes, and ends them all when one dies. Every worker and server connects to
    the driver, wherever it runs. A launcher object serves all attempts of a run.
    """

    # The program that starts all workers by one command, as it is named in messages; its log is `logs/<program>.log`.
    # None: there is one command a worker.
    program: ClassVar[str | None] = None
    # The environment variable in which each worker finds its rank.
    rank_variable: ClassVar[str] = wire.RANK
    # Whether workers can call MPI_Init, and are then ranks of one world. Without it only comm=ps works.
    starts_mpi: ClassVar[bool] = False
    # The exit status of a worker after which the program goes on and says nothing; None where there is no such status.
    unreported_exit_status: ClassVar[int | None] = None
    # The exit status of a command that stands for a process on another machine, where that one is gone without a word.
    lost_exit_status: ClassVar[int | None] = None

    @classmethod
    def from_config(cls, config: RunConfig, plan: Plan) -> Self:
        """The launcher for this run. Raises LaunchError where a host has no address."""
        return cls()

    @classmethod
    def unfit(cls, config: RunConfig, comm: str) -> str | None:
        """Why it cannot start a run of this configuration with the mode `comm`, None if it can. Asked when the
        configuration is validated, before anything else happens."""
        if cls.starts_mpi:
            return None
        if comm != "ps":
            return f"it starts no MPI, by which the workers of comm={comm} exchange gradients; choose comm=ps"
        if config.comm.mpi.mpirun_options:
            return "it does not use mpirun; leave comm.mpi.mpirun_options out"
        return None

    @property
    def address(self) -> str:
        """The address of this machine at which workers and servers reach the driver."""
        return bind_address.LOOPBACK

    def check(self, folders: Sequence[Path], stopped: Callable[[], bool]) -> None:
        """Called before each start: raises LaunchError where processes could not start, or would not see `folders`.
        Returns early once `stopped()` holds."""
        return

    @abstractmethod
    def workers(self, job: Job, cleanup: ExitStack) -> list[Command]:
        """One command that starts all workers where `program` names it, otherwise one a worker, in the order of ranks.

        Each worker must execute `job.worker_argv()` with `job.env` and `rank_variable`. What `cleanup` is given, the
        driver calls when all processes of the attempt have ended.
        """

    def servers(self, job: Job) -> list[Command]:
        """One command a server; here all of them run on this machine."""
        env = {**job.env, **bind_address.preload(os.environ)}
        return [Command(job.server_argv(index), env) for index in range(job.servers)]

    def rank_exit(self, output: str) -> RankExit | None:
        """The worker that died first, as the output of `program` tells; None if it tells of none."""
        return None

    def lines_of_rank(self, output: str, rank: int) -> tuple[str, ...]:
        """The lines in the output of `program` that a worker has written, before it had a log of its own."""
        return ()

    def hint(self, output: str, exit_status: int) -> str:
        """What to add to the message when `program` itself is to blame for the end of a run."""
        return ""
