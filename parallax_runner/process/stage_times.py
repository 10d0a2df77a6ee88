"""Logs how long each stage of a process's startup took, for users and for `scripts/bench startup`."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from parallax_runner.files.credentials import MaskingFormatter
from parallax_runner.process.changes import undo_later

log = logging.getLogger(__name__)

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


_on_begin: Callable[[str], None] | None = None


def report_to(on_begin: Callable[[str], None]) -> None:
    """Sets a callback that receives the name of each stage of this process when the stage begins."""
    global _on_begin
    _on_begin = on_begin


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Logs "stage NAME: 0.123 s" at the end of the block, or of each call of the decorated function."""
    if _on_begin is not None:
        _on_begin(name)
    started = time.perf_counter()
    yield
    tell(name, time.perf_counter() - started)


def tell(name: str, secs: float) -> None:
    """Logs a stage that has just ended and took `secs` seconds."""
    log.info("stage %s: %.3f s", name, secs)


def process_age_secs() -> float:
    """Returns the time since the kernel created this process, in seconds. The time is accurate to one clock tick, which
    is usually 10 ms."""
    after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start_ticks = int(after_name[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


def log_to(handler: logging.Handler) -> None:
    """Sends the package's log lines only to `handler`.

    Otherwise, a script's own root handlers, such as the handlers of `tf.app.run`, would also print these lines on the
    terminal. If the process belongs to the user's code, the package's logger is as before when the run ends.
    """
    handler.setFormatter(MaskingFormatter(FORMAT))
    package = logging.getLogger("parallax_runner")
    before = list(package.handlers), package.level, package.propagate
    package.handlers[:] = [handler]
    package.setLevel(logging.INFO)
    package.propagate = False

    def put_back() -> None:
        handler.close()
        package.handlers[:], package.propagate = before[0], before[2]
        package.setLevel(before[1])

    if not undo_later(put_back):
        for old in before[0]:
            old.close()


def log_to_stderr() -> None:
    """Sends the package's log lines to stderr. In a child process, stderr goes to the log of that process."""
    log_to(logging.StreamHandler(sys.stderr))
