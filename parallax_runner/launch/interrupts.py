"""Turns SIGINT and SIGTERM into facts that the supervising loop asks for."""

import signal
import threading
import time
from types import FrameType
from typing import Any, Self

# One Ctrl-C may arrive twice, from the terminal and from a wrapper such as `uv run` that passes it on.
SAME_PRESS_SECS = 0.5


class Interrupts:
    """While entered, SIGINT and SIGTERM are noted instead of acted upon; leaving restores the handlers.

    Outside the main thread Python allows no handlers, and nothing is noted.
    """

    def __init__(self) -> None:
        self.first_signal: int | None = None
        self.first_secs = 0.0
        self.again = False
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

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first_signal is None:
            self.first_signal, self.first_secs = number, now
        elif now - self.first_secs > SAME_PRESS_SECS:
            self.again = True
