"""Refuses a second run in a process in which a run is active."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from parallax_runner.errors import LaunchError


@dataclass(frozen=True)
class _Active:
    """The active run of a process. A process that is forked from it has no active run."""

    function: str
    thread: str
    pid: int


_lock = threading.Lock()
_active: _Active | None = None


def _renew_lock() -> None:
    """Replaces the lock, which another thread can hold while this process is forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def only_one_run(function: str) -> Iterator[None]:
    """Marks this process as the driver of a run during the block. `function` is the function that the user called.

    Raises LaunchError at once if the process is already the driver of a run: a run changes global state of TensorFlow,
    Keras and this project.
    """
    global _active
    thread = threading.current_thread().name
    with _lock:
        active = _active
        if active is not None and active.pid == os.getpid():
            raise LaunchError(
                f"{function} was called in the thread {thread!r} while {active.function} still runs in the thread "
                f"{active.thread!r}, but a process can have only one run at a time; call {function} after the other "
                "call has ended, or in a process of its own"
            )
        _active = _Active(function, thread, os.getpid())
    try:
        yield
    finally:
        _active = None
