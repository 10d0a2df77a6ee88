"""Collects metrics and sends them in batches from a thread, so that a slow store never holds up supervision."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SEND_EVERY_SECS = 2.0
# What MLflow takes in one call.
BATCH_SIZE = 1000
# Some 10 MB: what is kept while the store is out of reach; beyond that the oldest numbers go.
MAX_KEPT = 100_000


@dataclass(frozen=True)
class Point:
    """One number of one step; `time_ms` is Unix time."""

    key: str
    value: float
    time_ms: int
    step: int


class MetricBuffer:
    """Hands points to `send` at most every two seconds; `send` says whether they arrived, else they are kept."""

    def __init__(self, send: Callable[[Sequence[Point]], bool], *, every_secs: float = SEND_EVERY_SECS) -> None:
        self._send = send
        self._every_secs = every_secs
        self._points: list[Point] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        self._thread.start()

    def add(self, points: Sequence[Point]) -> None:
        """Keeps points for the next batch."""
        with self._lock:
            self._points.extend(points)
            del self._points[:-MAX_KEPT]

    def close(self) -> int:
        """Sends what is left, once; returns how many points could not be sent."""
        self._closing.set()
        self._thread.join()
        self._flush()
        return len(self._points)

    def _work(self) -> None:
        while not self._closing.wait(self._every_secs):
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            points, self._points = self._points, []
        while points and self._send(points[:BATCH_SIZE]):
            points = points[BATCH_SIZE:]
        with self._lock:
            self._points[:0] = points
