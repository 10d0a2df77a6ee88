"""What the launchers that use mpirun have in common."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from parallax_runner.launch.control import wire
from parallax_runner.launch.deaf import DEAF
from parallax_runner.launch.hosts import Hosts
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.launchers.launcher import Launcher, RankExit
from parallax_runner.launch.mpirun import folders as mpirun_folders
from parallax_runner.launch.mpirun import report
from parallax_runner.launch.mpirun.command import find_mpirun, worker_command


class Mpirun(Launcher):
    """Starts all workers by one mpirun, with the user's own `options` last; `hosts` is None for this machine alone."""

    program = "mpirun"
    rank_variable = "OMPI_COMM_WORLD_RANK"
    starts_mpi = True
    # Where ranks do not use MPI. After every other end mpirun ends the other ranks, and says whose end it was.
    unreported_exit_status = 0

    def __init__(self, options: Sequence[str] = (), hosts: Hosts | None = None) -> None:
        self.options = tuple(options)
        self.hosts = hosts

    def check(self, folders: Sequence[Path], stopped: Callable[[], bool]) -> None:
        """Raises LaunchError without mpirun."""
        find_mpirun()

    def workers(self, job: Job, cleanup: ExitStack) -> list[Command]:
        """The one command, with folders of its own for what mpirun and its ranks write."""
        command = worker_command(job, options=self.options, hosts=self.hosts)
        made = mpirun_folders.make_folders(command.argv, alone=self.hosts is None)
        for folder in made.values():
            cleanup.callback(folder.remove)
        named = {variable: str(folder.path) for variable, folder in made.items()}
        command = command._replace(env=command.env | named)
        if wire.DEAF in job.env:  # SIGTERM would not end it when the driver is gone
            command = command._replace(argv=[*DEAF, *command.argv], last_signal=int(signal.SIGKILL))
        return [command]

    def rank_exit(self, output: str) -> RankExit | None:
        """As mpirun's sentences say."""
        return report.find_rank_exit(output)

    def lines_of_rank(self, output: str, rank: int) -> tuple[str, ...]:
        """As mpirun's tags say."""
        return report.lines_of_rank(output, rank)

    def hint(self, output: str, exit_status: int) -> str:
        """mpirun catches some signals, ends its ranks, and says nothing."""
        return report.TOLD_TO_END if report.was_told_to_end(output, exit_status) else ""


def options_of_user(config: Any) -> list[str]:
    """`comm.mpi.mpirun_options` as words."""
    options = config.comm.mpi.mpirun_options or ()
    return shlex.split(options) if isinstance(options, str) else list(options)
