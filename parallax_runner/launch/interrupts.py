"""Signals that end a run. While the driver works alone, a signal raises an exception. While the driver supervises a
run, a signal sets a flag."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from parallax_runner.errors import Interrupted

__all__ = ["Interrupted", "Interrupts", "ending_signals"]

# The signal of one Ctrl-C can arrive twice: from the terminal, and from a wrapper such as `uv run` that forwards it.
SAME_PRESS_SECS = 0.5
# How long a driver has, after the second signal, to end a run that it supervises or its brief work. After this
# time, the next signal kills the driver.
FORCED_END_SECS = 5.0


def ending_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals that end a run. A lost terminal causes SIGHUP. SIGHUP is omitted if this process ignores it,
    for example because of `nohup`."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if is_ignored else (signal.SIGHUP,)))


class Interrupts:
    """A context manager that handles the signals that end a run. The first signal raises Interrupted. A second signal
    terminates this process at once, and the kernel then terminates its children. Within `supervised`, `noted`, `brief`
    and `held`, the signals raise nothing.

    A SIGHUP is never treated as the second signal, because a lost terminal causes several SIGHUPs, from the shell and
    from the kernel. The first SIGTERM after a SIGHUP does not count either: a session manager sends SIGTERM to all
    remaining processes of a session.

    `more` are additional signals that end this run. Python allows signal handlers only in the main thread, so an object
    that is entered in another thread handles no signals.
    """

    def __init__(self, *more: signal.Signals) -> None:
        self._more = more
        self.first_signal: int | None = None
        self.first_secs = 0.0
        self.again = False
        self._press_secs = 0.0
        self._again_secs = 0.0
        self._supervised = False
        self._held = 0
        self._brief = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (*ending_signals(), *self._more):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def received(self) -> bool:
        """Whether a signal has arrived."""
        return self.first_signal is not None

    @property
    def exit_status(self) -> int:
        """The exit status that a shell shows for a process killed by the first signal, for example 130 for SIGINT."""
        return 128 + (self.first_signal or 0)

    @property
    def signal_name(self) -> str:
        """The name of the first signal: SIGINT, SIGTERM, SIGHUP, or one of `more`."""
        return signal.Signals(self.first_signal or 0).name

    @contextmanager
    def supervised(self) -> Iterator[None]:
        """Within the block, the first and second signals are only recorded. The caller checks `received` and
        `again`."""
        self._supervised = True
        try:
            yield
        finally:
            self._supervised = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """A context for work after the end of a run: the first signal is only recorded, and the second signal kills
        this process."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context for work that must not be interrupted: the first signal raises Interrupted only at the end of the
        block."""
        before = self.received
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self.received and not before:
            raise Interrupted

    @contextmanager
    def brief(self) -> Iterator[None]:
        """A context for brief work after the end of a run that must not be done in part: the first signal is only
        recorded, and the second signal terminates this process at the end of the block."""
        before = self.again
        self._brief += 1
        try:
            with self.noted():
                yield
        finally:
            self._brief -= 1
        if self.again and not before:
            os._exit(self.exit_status)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first_signal is None:
            self.first_signal, self.first_secs, self._press_secs = number, now, now
            if not self._supervised and not self._held:
                raise Interrupted
        elif (self.first_signal, number, self.again) == (signal.SIGHUP, signal.SIGTERM, False):
            self.first_signal, self._press_secs = number, now
        elif number != signal.SIGHUP and now - self._press_secs > SAME_PRESS_SECS:
            self._note_again(now)

    def _note_again(self, now: float) -> None:
        """Ends this process at once, unless it supervises a run or does brief work, and reacts to an earlier second
        signal."""
        # A supervising driver may hang, for example on a terminal that accepts no output.
        is_held_up = self.again and now - self._again_secs > FORCED_END_SECS
        is_busy = self._supervised or self._brief > 0
        if not is_busy or is_held_up:
            os._exit(self.exit_status)
        if not self.again:
            self.again, self._again_secs = True, now
