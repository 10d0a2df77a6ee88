"""The launcher interface. The driver uses it to start the processes of a run and to find out how they ended. The
configuration and the driver ask a launcher's class what it needs, and compare no names."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.launched_processes import World
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import ClusterConfig, RunConfig
from parallax_runner.launch import bind_address, preloaded
from parallax_runner.launch.control import wire
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.launchers.membership import Membership
from parallax_runner.launch.launchers.submission import Submission
from parallax_runner.plan.plan import Plan


@dataclass(frozen=True)
class RankExit:
    """How a worker ended. As in the `subprocess` module, `exit_status` is the negative signal number if a signal killed
    the worker."""

    rank: int
    exit_status: int


@dataclass(frozen=True)
class Leaving:
    """A worker or server that must end within `secs` seconds, because its machine is taken away."""

    role: str
    index: int
    host: str
    secs: float


class Launcher(ABC):
    """Starts the workers and servers of one run. `cluster.launcher` selects the subclass (docs/design/0044).

    A launcher does not start processes itself: it returns commands. The driver executes each command in its own session
    and writes the output to a log. The driver watches the processes, and terminates all of them when one dies. Every
    worker and server connects to the driver, no matter which host the process runs on. One launcher object is used for
    all attempts of a run.
    """

    # The name of the program that starts all workers with one command, for messages and for `logs/<program>.log`. It is
    # None if there is one command per worker.
    program: ClassVar[str | None] = None
    # The environment variable that contains each worker's rank.
    rank_variable: ClassVar[str] = wire.RANK
    # Whether the workers can call MPI_Init and then form one MPI world. Unless a launcher overrides `unfit`, only
    # comm=ps works without MPI.
    starts_mpi: ClassVar[bool] = False
    # If a worker exits with this status, the program continues and does not report the exit. None if there is no such
    # status.
    unreported_exit_status: ClassVar[int | None] = None
    # The exit status of the local command that stands in for a remote process, if the remote process ended without
    # reporting its status.
    lost_exit_status: ClassVar[int | None] = None
    # How long the workers have to save and to end, if a signal ends the run.
    grace_secs: float = 10.0
    # The keys of `cluster` that only this launcher uses, and what they are for, as in «it is only for Slurm jobs».
    own_keys: ClassVar[tuple[str, ...]] = ()
    keys_are_for: ClassVar[str] = "this launcher"
    # Whether it reads `cluster.options`, the untyped keys of launchers from other packages.
    has_options: ClassVar[bool] = True
    # Whether the run is a Slurm job. Outside of one, the driver writes and submits the job. In one, the signal that
    # Slurm sends before the time limit ends the run.
    runs_slurm_job: ClassVar[bool] = False
    # Whether the user or another program starts the workers and servers, on any hosts. They stand by for the driver,
    # and accept only one.
    processes_stand_by: ClassVar[bool] = False
    # Whether the ranks find each other without mpirun and then have collectives (`Backend.without_mpirun`).
    without_mpirun: ClassVar[bool] = False
    # Whether a run can go on with another number of workers. Such a launcher overrides `membership`.
    changes_size: ClassVar[bool] = False

    @classmethod
    def check_config(cls, config: RunConfig, origins: Origins) -> None:
        """Raises ConfigError if settings contradict this launcher. Also called for a mode with one process, which the
        driver starts itself."""
        return

    @classmethod
    def host_lines(cls, cluster: ClusterConfig) -> tuple[str, ...] | None:
        """Returns the hosts of an allocation as lines of `cluster.resource_info`, which determine the numbers of
        processes. Returns None if the configuration determines the hosts. Raises ConfigError if the allocation cannot
        be read."""
        return None

    @classmethod
    def requested_lines(cls, cluster: ClusterConfig) -> tuple[str, ...] | None:
        """Returns the hosts that the configuration requests as lines of `cluster.resource_info`, if the allocation may
        have another number of them and the run goes on with any of these numbers. Otherwise, returns None."""
        return None

    @classmethod
    def takes_one_of(cls, world: World, environ: Mapping[str, str]) -> bool:
        """Returns whether this launcher's scheduler has started the processes of `world`, so that one of them is the
        driver and the others end (`is_surplus`). In any other world, each process would start a run of its own."""
        return False

    @classmethod
    def is_surplus(cls) -> bool:
        """Returns whether this process is one of several tasks of this launcher's scheduler, and not the driver."""
        return False

    @classmethod
    def submission(cls, config: RunConfig) -> Submission | None:
        """Returns how a run that has steps is handed to this launcher's scheduler. Returns None if the driver starts
        the processes itself, for example in a job of the scheduler."""
        return None

    @classmethod
    def from_config(cls, config: RunConfig, plan: Plan) -> Self:
        """Returns the launcher for this run. Raises LaunchError if a host has no address."""
        return cls()

    @classmethod
    def membership(cls, config: RunConfig, plan: Plan) -> Membership:
        """Returns the object that knows which workers and servers there are. It is called only if the number of workers
        may change (`changes_size`). `config` and `plan` are those with which the run begins."""
        raise NotImplementedError(f"{cls.__name__} does not change its number of workers")

    @classmethod
    def unfit(cls, config: RunConfig, comm: str) -> str | None:
        """Returns the reason why this launcher cannot start a run of this configuration with the mode `comm`, or None
        if it can. This method is called when the configuration is validated, before anything else happens."""
        if cls.starts_mpi:
            return None
        # The mode of a calibration, which differs from the configuration's own, has collectives.
        if comm != config.comm.name or mode_of(config.comm).has_collectives:
            return f"it does not start MPI, which comm={comm} needs to exchange gradients; choose comm=ps"
        if config.comm.mpi.mpirun_options:
            return "it does not use mpirun; omit comm.mpi.mpirun_options"
        return None

    @property
    def address(self) -> str:
        """This machine's address, which workers and servers use to reach the driver."""
        return bind_address.LOOPBACK

    def check(self, folders: Sequence[Path], stopped: Callable[[], bool]) -> None:
        """Checks the hosts before each start. Raises LaunchError if processes could not start or would not see
        `folders`. Returns early once `stopped()` returns True."""
        return

    def misplaced(self, role: str, index: int, host: str) -> str | None:
        """Returns a description of the fault if a process is not on its planned host, or None. `host` is the host name
        that the process has reported. The base class returns None, because it does not know the names of the hosts."""
        return None

    @abstractmethod
    def workers(self, job: Job, cleanup: ExitStack) -> list[Command]:
        """Returns one command that starts all workers if `program` is set. Otherwise returns one command per worker, in
        rank order.

        Each worker must execute `job.worker_argv()` with the variables `job.env` and its rank in `rank_variable`. The
        driver closes `cleanup` when all processes of the attempt have ended.
        """

    def servers(self, job: Job) -> list[Command]:
        """Returns one command per server. In this base class all servers run on this machine."""
        env = {**job.env, **preloaded.environment(os.environ)}
        return [Command(job.server_argv(index), env) for index in range(job.servers)]

    def memory_kills(self, host: str) -> int | None:
        """Returns how many processes the kernel of another host has ended because memory ran out, or None if this
        launcher cannot ask the host. `host` is the host name that a process has reported. The driver asks after a
        process on the host was killed, and waits for the answer."""
        return None

    def leaving(self) -> Leaving | None:
        """Returns a process that has said that it must end, or None. The driver asks several times a second."""
        return None

    def rank_exit(self, output: str) -> RankExit | None:
        """Returns the worker that died first according to the output of `program`, or None if the output names no
        worker."""
        return None

    def lost_peer(self, output: str) -> str | None:
        """Returns the host of a worker that ended without a message, if another worker names this host in the output
        of `program`. Otherwise, returns None."""
        return None

    def lines_of_rank(self, output: str, rank: int) -> tuple[str, ...]:
        """Returns the lines in the output of `program` that worker `rank` wrote before it had its own log."""
        return ()

    def hint(self, output: str, exit_status: int) -> str:
        """Returns text to append to the message if `program` itself is to blame for the failure of a run."""
        return ""

    def start_hint(self, output: str, *, any_started: bool) -> str:
        """Returns text to append to the message if the output of `program` shows why the workers could not start.
        `any_started` means that at least one worker has connected to the driver."""
        return ""
