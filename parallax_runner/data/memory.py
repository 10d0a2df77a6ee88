"""Whether data that are made in memory can fit there, asked before they are made."""

from __future__ import annotations

import psutil

from parallax_runner.errors import ConfigError


def check_fits(needed_bytes: int, **sizes: int) -> None:
    """`sizes` are the keys of `data` that decide how much is needed. Raises ConfigError where this machine has less:
    NumPy would fail with a MemoryError, or the kernel would end the process after minutes."""
    has_bytes = psutil.virtual_memory().total
    if needed_bytes > has_bytes:
        named = ", ".join(f"data.{key}={size}" for key, size in sizes.items())
        raise ConfigError(
            f"{named}: these data take {needed_bytes / 1e9:,.0f} GB, and this machine has {has_bytes / 1e9:,.0f} GB of "
            "memory: expected less"
        )
