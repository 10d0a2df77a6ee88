"""The launcher for a single-process run: the driver starts the process itself."""

from contextlib import ExitStack

from parallax_runner.launch.control import wire
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.launchers.launcher import Launcher


class Direct(Launcher):
    """Starts each worker as a child of the driver, on this machine."""

    def workers(self, job: Job, cleanup: ExitStack) -> list[Command]:
        """Returns one command per worker."""
        return [Command(job.worker_argv(), {**job.env, wire.RANK: str(rank)}) for rank in range(job.workers)]
