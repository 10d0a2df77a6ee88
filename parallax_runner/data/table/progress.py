"""Reports the progress of a conversion, and checks that the disk suffices."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

from parallax_runner.errors import DataError

log = logging.getLogger(__name__)

REPORT_SECS = 10.0


class Progress:
    """Logs the progress from time to time, and checks that the disk suffices."""

    def __init__(self, total_bytes: int, folder: Path) -> None:
        self._total_bytes = total_bytes
        self._folder = folder
        self._started = time.monotonic()
        self._told: float | None = None

    def tell(self, read_bytes: int, written_bytes: int) -> None:
        """Reports that so many bytes of the files have become so many bytes of arrays."""
        now = time.monotonic()
        if self._told is not None and now - self._told < REPORT_SECS:
            return
        is_first = self._told is None
        self._told = now
        self._check_disk(read_bytes, written_bytes)
        if not is_first:
            share = 100 * read_bytes / self._total_bytes
            speed = read_bytes / 1e6 / (now - self._started)
            log.info("converting files to arrays: %.0f %% of %.1f GB, %.0f MB/s", share, self._total_bytes / 1e9, speed)

    def _check_disk(self, read_bytes: int, written_bytes: int) -> None:
        if read_bytes == 0:
            return
        needed_bytes = written_bytes / read_bytes * (self._total_bytes - read_bytes)
        free_bytes = shutil.disk_usage(self._folder).free
        if needed_bytes > free_bytes:
            raise DataError(
                f"{self._folder.parent}: the arrays of the files need about {needed_bytes / 1e9:.1f} GB more, and "
                f"{free_bytes / 1e9:.1f} GB are free. Set data.cache_dir or XDG_CACHE_HOME to a directory on a larger "
                "disk."
            )
