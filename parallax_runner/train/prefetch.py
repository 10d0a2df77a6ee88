"""Prepares batches in a thread while steps run, so that a step does not wait for input."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np

# The input of one step: a batch for each replica of the worker.
Batches = list[dict[str, np.ndarray]]

AHEAD = 2  # batches


class Prefetch:
    """Calls `make(0)`, `make(1)`, … up to `make(count - 1)` in a thread, at most AHEAD batches in advance.

    The thread does not make batches that `next` has already skipped. Use this class as a context manager. On exit, it
    waits for the batch in progress and ends the thread.
    """

    def __init__(self, make: Callable[[int], Batches], count: int) -> None:
        self._make = make
        self._count = count
        self._wanted = 0
        self._peeked: Batches | None = None
        self._waited_secs = 0.0
        self._made: queue.Queue[tuple[int, Batches | BaseException]] = queue.Queue(AHEAD)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        while not self._made.empty():  # the thread may be waiting for room in the queue
            self._made.get_nowait()
        self._thread.join()

    def peek(self) -> Batches | None:
        """Returns the batches that `next` will return, or None if there are no more batches."""
        if self._peeked is None and self._wanted < self._count:
            self._peeked = self.next()
            self._wanted -= 1
        return self._peeked

    def next(self, skip: int = 0) -> Batches:
        """Skips `skip` batches and returns the next one. Raises any error that `make` raised."""
        if self._peeked is not None and not skip:
            peeked, self._peeked = self._peeked, None
            self._wanted += 1
            return peeked
        wanted = self._wanted + skip
        self._wanted = wanted + 1
        started_secs = time.perf_counter()
        while True:
            number, made = self._made.get()
            if isinstance(made, BaseException):
                raise made
            if number == wanted:
                self._waited_secs += time.perf_counter() - started_secs
                return made

    def take_waited_secs(self) -> float:
        """Returns the time in which `next` and `peek` have waited for batches since the last call."""
        waited_secs, self._waited_secs = self._waited_secs, 0.0
        return waited_secs

    def _work(self) -> None:
        number = -1
        while (number := max(number + 1, self._wanted - 1)) < self._count:
            if self._closing.is_set():
                return
            try:
                made: Batches | BaseException = self._make(number)
            except BaseException as error:  # the training thread raises the error
                made = error
            self._made.put((number, made))
            if isinstance(made, BaseException):
                return
