"""The memory that a plan's processes are predicted to need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessMemory:
    """The predicted peak memory of each of `count` processes with a role, in bytes: at the start, in steps, and while a
    checkpoint is saved or, for the driver, while the model is exported. The chief is worker 0, and has its own role."""

    role: str
    count: int
    start_bytes: int
    step_bytes: int
    save_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The largest of the three."""
        return max(self.start_bytes, self.step_bytes, self.save_bytes)
