"""The memory of this process without pages of files, which the kernel can take back at any time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

SAMPLE_SECS = 0.02


def anonymous_bytes() -> int:
    """Returns the anonymous memory of this process (RssAnon), as Linux reports it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


class PeakMemory:
    """Samples the anonymous memory in a thread until the block ends. `peak_bytes` is the largest sample."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECS):
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes())
