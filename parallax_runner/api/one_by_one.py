"""A script that somebody starts once for each worker, as in systems that have no driver: the script in which rank 0 is
to be drives the run, and the others stand by."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Callable

from parallax_runner.errors import LaunchError, ParallaxError
from parallax_runner.frontdoors.door import Task
from parallax_runner.frontdoors.with_driver import start_beside
from parallax_runner.launch.manual.stand_by import DEFAULT_TIMEOUT_SECS, stand_by
from parallax_runner.process.exit_status import tell
from parallax_runner.worker.script import this_worker

_lines: list[str] = []


def cluster_lines() -> list[str]:
    """The overrides that say which cluster this script has been given; none where it was started once for all."""
    return list(_lines)


def take_part(read: Callable[[], Task | None]) -> None:
    """Makes this process what `read` says, which may raise ConfigError; None: it is alone.

    Rank 0 goes on in its script, which drives the run: a process beside it is the worker. In all others the script ends
    here, with the run. A worker that a driver has started has all that it needs, and goes on.
    """
    if this_worker() is not None:
        return
    try:
        task = read()
        if task is not None:
            _become(task)
    except ParallaxError as error:
        sys.exit(tell(error))


def _become(task: Task) -> None:
    if _lines:
        raise LaunchError("this script was told which process it is a second time")
    task.prepare()
    if not task.starts_driver:
        sys.exit(
            stand_by(task.role, task.rendezvous, task.index, address=task.address, timeout_secs=DEFAULT_TIMEOUT_SECS)
        )
    _lines.extend(task.driver_settings())
    worker = start_beside("parallax_runner.worker", task.worker_options(DEFAULT_TIMEOUT_SECS))
    atexit.register(_end, worker, os.getpid())


def _end(worker: subprocess.Popen[bytes], pid: int) -> None:
    """Not in a process that was forked from this one."""
    if os.getpid() == pid:
        worker.terminate()
        worker.wait()
