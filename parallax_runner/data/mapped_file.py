"""A file that is read through memory: what becomes of it while a run goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from parallax_runner.errors import DataError


@dataclass(frozen=True)
class MappedFile:
    """A file as it was when it was mapped, `size_bytes` long."""

    path: Path
    size_bytes: int

    @classmethod
    def of(cls, path: Path) -> MappedFile:
        """Raises OSError where there is no such file."""
        return cls(path, path.stat().st_size)

    def check(self) -> None:
        """Raises DataError where the file is gone or shorter: to read on would kill the process (SIGBUS), or train on
        what no resumed run will find again. Costs one system call."""
        try:
            size_bytes = os.stat(self.path).st_size
        except OSError as error:
            raise DataError(f"{self.path}: this data is gone while it is trained on: {error.strerror}.") from error
        if size_bytes < self.size_bytes:
            raise DataError(
                f"{self.path}: this data was cut while it is trained on, from {self.size_bytes} bytes to {size_bytes}."
            )
