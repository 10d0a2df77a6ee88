"""What to start: the nouns between the plan and the processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from parallax_runner.launch.launchers.launcher import Launcher


class Command(NamedTuple):
    """An argument list, the variables it needs on top of the inherited environment, and its input, which nobody else
    can read. `last_signal` is what the kernel sends it when the driver dies: SIGTERM to a program that ends others."""

    argv: list[str]
    env: dict[str, str]
    stdin: bytes = b""
    last_signal: int = int(signal.SIGKILL)


@dataclass(frozen=True)
class Job:
    """The processes of one launch: so many workers and servers, and what runs in each of them.

    `env` has the variables that each of them needs on top of the inherited environment. When a launcher gets the job,
    the way to the driver is among them, and the run's secret: they must not stand on a command line.
    """

    run_dir: Path
    workers: int
    servers: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    worker_module: str = "parallax_runner.worker"
    server_module: str = "parallax_runner.server"

    def worker_argv(self) -> list[str]:
        """What a worker executes; it finds its rank in the variable `Launcher.rank_variable`."""
        return [sys.executable, "-m", self.worker_module, str(self.run_dir)]

    def server_argv(self, index: int) -> list[str]:
        """What server `index` executes."""
        return [sys.executable, "-m", self.server_module, str(self.run_dir), str(index)]


@dataclass(frozen=True)
class LaunchSpec:
    """A job, who starts it, and the limits that its processes are held to.

    All hosts must see the folders `shared`. A process without a sign of life for `hang_timeout_secs` counts as dead.
    Without the end of a step for `stall_timeout_secs` the run fails; None: there are only notices. `together`: every
    step needs all workers.
    """

    job: Job
    launcher: Launcher
    shared: tuple[Path, ...] = ()
    grace_secs: float = 10.0
    startup_timeout_secs: float = 300.0
    hang_timeout_secs: float = 60.0
    stall_timeout_secs: float | None = None
    together: bool = True


def thread_environment(threads: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables every child gets; `threads` is its number of compute threads."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_CPP_MIN_LOG_LEVEL": environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        "PYTHONUNBUFFERED": "1",
    }
