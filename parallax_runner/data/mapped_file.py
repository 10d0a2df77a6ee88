"""Checks that a memory-mapped file stays intact during a run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from parallax_runner.errors import DataError


@dataclass(frozen=True)
class MappedFile:
    """A memory-mapped file and the size that it had when it was mapped."""

    path: Path
    size_bytes: int

    @classmethod
    def of(cls, path: Path) -> MappedFile:
        """Records a file and its size. Raises OSError if the file does not exist."""
        return cls(path, path.stat().st_size)

    def check(self) -> None:
        """Raises DataError if the file has been deleted or has become shorter. Reading a truncated file would kill the
        process (SIGBUS), and a resumed run could not read a deleted file. The check costs one system call."""
        try:
            size_bytes = os.stat(self.path).st_size
        except OSError as error:
            raise DataError(f"{self.path}: this file disappeared during training: {error.strerror}.") from error
        if size_bytes < self.size_bytes:
            raise DataError(
                f"{self.path}: this file was truncated during training, from {self.size_bytes} bytes to {size_bytes}."
            )
