"""SIGINT and SIGTERM to the driver: an exception while it works alone, a fact to ask for while it supervises."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

# One Ctrl-C may arrive twice, from the terminal and from a wrapper such as `uv run` that passes it on.
SAME_PRESS_SECS = 0.5


class Interrupted(BaseException):
    """The user or the batch system wants this run to end. No error, so `except Exception` lets it through."""


class Interrupts:
    """While entered, the first SIGINT or SIGTERM raises Interrupted, once; a second one ends this process at once, and
    the kernel then ends its children. Within `supervised` and `held` nothing is raised.

    Outside the main thread Python allows no handlers, and nothing is noted.
    """

    def __init__(self) -> None:
        self.first_signal: int | None = None
        self.first_secs = 0.0
        self.again = False
        self._supervised = False
        self._held = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def received(self) -> bool:
        """Whether a signal came."""
        return self.first_signal is not None

    @property
    def exit_status(self) -> int:
        """What a shell shows for a process that the signal has ended: 130 or 143."""
        return 128 + (self.first_signal or 0)

    @property
    def signal_name(self) -> str:
        """SIGINT or SIGTERM."""
        return signal.Signals(self.first_signal or 0).name

    @contextmanager
    def supervised(self) -> Iterator[None]:
        """Signals are only noted, the second one too: whoever runs within looks at `received` and `again`."""
        self._supervised = True
        try:
            yield
        finally:
            self._supervised = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """For what is done when all else has been: a first signal is noted and stops nothing, a second one kills."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """For what must not stop half-way: a first signal raises Interrupted at the end of the block."""
        before = self.received
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self.received and not before:
            raise Interrupted

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first_signal is None:
            self.first_signal, self.first_secs = number, now
            if not self._supervised and not self._held:
                raise Interrupted
        elif now - self.first_secs > SAME_PRESS_SECS:
            self.again = True
            if not self._supervised:
                os._exit(self.exit_status)
