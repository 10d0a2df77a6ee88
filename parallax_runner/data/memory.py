"""Checks that data fits in memory before it is generated."""

from __future__ import annotations

import psutil

from parallax_runner.errors import ConfigError, Setting


def check_fits(needed_bytes: int, **sizes: int) -> None:
    """Raises ConfigError if this machine has less than `needed_bytes` of memory. Without this check, NumPy would fail
    with a MemoryError, or the kernel would kill the process after minutes. `sizes` contains the settings of `data` that
    determine how much memory is needed."""
    has_bytes = psutil.virtual_memory().total
    if needed_bytes > has_bytes:
        raise ConfigError(
            f"this data needs {needed_bytes / 1e9:,.0f} GB, but this machine has {has_bytes / 1e9:,.0f} GB of memory."
        ).about(*[Setting.of(f"data.{key}", size) for key, size in sizes.items()], remedy="Use smaller values")
