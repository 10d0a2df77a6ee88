"""The base class of the launchers that use mpirun."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from parallax_runner.collectives.chosen import backend
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch.block_signals import BLOCK_SIGNALS
from parallax_runner.launch.control import wire
from parallax_runner.launch.hosts import Hosts
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.launchers.launcher import Launcher, RankExit
from parallax_runner.launch.mpirun import folders as mpirun_folders
from parallax_runner.launch.mpirun import report
from parallax_runner.launch.mpirun.command import find_mpirun, worker_command
from parallax_runner.launch.mpirun.mca import settings_of_user


class Mpirun(Launcher):
    """Starts all workers with one mpirun. The user's `options` come last. `hosts` is None if all workers run on this
    machine."""

    program = "mpirun"
    rank_variable = "OMPI_COMM_WORLD_RANK"
    starts_mpi = True
    # If a rank that does not use MPI exits with this status, mpirun does not report it. After any other exit status,
    # mpirun terminates the other ranks and names the rank that exited.
    unreported_exit_status = 0

    def __init__(self, options: Sequence[str] = (), hosts: Hosts | None = None) -> None:
        self.options = tuple(options)
        self.hosts = hosts

    def check(self, folders: Sequence[Path], stopped: Callable[[], bool]) -> None:
        """Raises LaunchError if there is no mpirun, or if the environment chooses another way to connect ranks."""
        find_mpirun()
        check_mpi_is_chosen()

    def workers(self, job: Job, cleanup: ExitStack) -> list[Command]:
        """Returns the single mpirun command. Its environment names private folders for the files of mpirun and its
        ranks."""
        command = worker_command(job, options=self.options, hosts=self.hosts)
        made = mpirun_folders.make_folders(command.argv, alone=self.hosts is None)
        for folder in made.values():
            cleanup.callback(folder.remove)
        named = {variable: str(folder.path) for variable, folder in made.items()}
        command = command._replace(env=command.env | named)
        if wire.BLOCK_SIGNALS in job.env:  # mpirun then blocks SIGTERM, so only SIGKILL ends it when the driver dies
            command = command._replace(argv=[*BLOCK_SIGNALS, *command.argv], last_signal=int(signal.SIGKILL))
        return [command]

    def rank_exit(self, output: str) -> RankExit | None:
        """Returns the rank that mpirun's messages name."""
        return report.find_rank_exit(output)

    def lost_peer(self, output: str) -> str | None:
        """Returns the host that a rank names as the one of its lost peer."""
        return report.find_lost_peer(output)

    def lines_of_rank(self, output: str, rank: int) -> tuple[str, ...]:
        """Returns the lines that mpirun tagged with this rank."""
        return report.lines_of_rank(output, rank)

    def hint(self, output: str, exit_status: int) -> str:
        """Returns a hint if mpirun caught a signal. mpirun itself does not report the signal."""
        return report.TOLD_TO_END if report.was_told_to_end(output, exit_status) else ""

    def start_hint(self, output: str, *, any_started: bool) -> str:
        """Returns a sentence if mpirun or MPI_Init failed. It names the user's own parameters for Open MPI, which often
        come from a site's environment module."""
        if any_started and not report.mpi_failed_to_start(output):
            return ""
        settings = settings_of_user((find_mpirun(), *self.options))
        return report.told_of_settings(settings) if settings else ""


def check_mpi_is_chosen(environ: Mapping[str, str] = os.environ) -> None:
    """Raises LaunchError if a variable makes the backend connect the ranks without MPI. Ranks under mpirun would
    crash."""
    name = backend().without_mpi_by(environ)
    if name is not None:
        raise LaunchError("mpirun starts the workers of this run, and they exchange gradients through MPI").about(
            Setting.of(name, environ[name]), remedy=f"unset {name}, or use cluster=manual, whose workers use Gloo"
        )


def options_of_user(config: Any) -> list[str]:
    """Returns `comm.mpi.mpirun_options` as a list of words."""
    options = config.comm.mpi.mpirun_options or ()
    return shlex.split(options) if isinstance(options, str) else list(options)
