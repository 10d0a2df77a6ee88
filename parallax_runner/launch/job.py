"""Data classes for the commands, jobs and limits of a launch."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from parallax_runner.process import tensorflow_allocator

if TYPE_CHECKING:
    from parallax_runner.launch.launchers.launcher import Launcher


class Command(NamedTuple):
    """A command: its arguments, the variables that it needs in addition to the inherited environment, and its standard
    input, which no other user can read. When the driver dies, the kernel sends `last_signal` to the process. This
    signal is SIGTERM if the program must terminate other processes."""

    argv: list[str]
    env: dict[str, str]
    stdin: bytes = b""
    last_signal: int = int(signal.SIGKILL)


@dataclass(frozen=True)
class Job:
    """The processes of one launch: the number of workers and servers, and the modules that they run.

    `env` contains the variables that each process needs in addition to the inherited environment. When a launcher
    receives the job, these variables include the driver's address and the run's secret, so they must not appear on a
    command line.
    """

    run_dir: Path
    workers: int
    servers: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    worker_module: str = "parallax_runner.worker"
    server_module: str = "parallax_runner.server"

    def worker_argv(self) -> list[str]:
        """Returns the command of a worker. The worker reads its rank from the variable that `Launcher.rank_variable`
        names."""
        return [sys.executable, "-m", self.worker_module, str(self.run_dir)]

    def server_argv(self, index: int) -> list[str]:
        """Returns the command of server `index`."""
        return [sys.executable, "-m", self.server_module, str(self.run_dir), str(index)]


def _never() -> bool:
    return False


@dataclass(frozen=True)
class LaunchSpec:
    """A job, its launcher, and the limits for its processes.

    `shared` lists folders that all hosts must see. A process that sends no heartbeat for `hang_timeout_secs` is treated
    as dead. If no step finishes for `stall_timeout_secs`, the run fails; if `stall_timeout_secs` is None, stalls are
    only reported. `together` means that every step needs all workers. Once `ends_early()` returns True, the workers
    save and end, because another launch with more workers can begin.
    """

    job: Job
    launcher: Launcher
    shared: tuple[Path, ...] = ()
    grace_secs: float = 10.0
    startup_timeout_secs: float = 300.0
    hang_timeout_secs: float = 60.0
    stall_timeout_secs: float | None = None
    together: bool = True
    ends_early: Callable[[], bool] = _never


def thread_environment(threads: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment variables for every child process. `threads` is the number of compute threads of each
    child."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_CPP_MIN_LOG_LEVEL": environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        "PYTHONUNBUFFERED": "1",
        tensorflow_allocator.VARIABLE: tensorflow_allocator.value_for_children(environ),
    }
