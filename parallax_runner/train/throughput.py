"""Times of steps, without the first ones, which pay for set-up."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WARM_UP_STEPS = 5


@dataclass
class Throughput:
    """Collects the seconds of each step; figures leave out up to WARM_UP_STEPS at the start. `sent_bytes` is the sum
    over all steps."""

    step_secs: list[float] = field(default_factory=list)
    sent_bytes: np.ndarray | float = 0.0

    def add(self, step_secs: float, sent_bytes: np.ndarray, steps: int = 1) -> None:
        """Notes one step, or several that passed meanwhile; none where the step was never complete. `sent_bytes` is
        what `DistributedGraph` has."""
        if steps:
            self.step_secs += [step_secs / steps] * steps
            self.sent_bytes = self.sent_bytes + sent_bytes

    def begin_again(self) -> None:
        """Forgets all: what comes is not of the same kind."""
        self.step_secs, self.sent_bytes = [], 0.0

    def figures(self) -> dict[str, Any]:
        """Steps a second over the time measured, percentiles in milliseconds, mean bytes, in all and as
        `DistributedGraph` has them by variable; None where nothing ran."""
        measured = self.step_secs[min(WARM_UP_STEPS, len(self.step_secs) // 2) :]
        if not measured:
            names = ("steps_per_sec", "step_ms_p50", "step_ms_p90", "sent_bytes_per_step", "sent_bytes_by_variable")
            return dict.fromkeys(names)
        deciles = statistics.quantiles(measured, n=10, method="inclusive") if len(measured) > 1 else measured * 9
        sent_bytes = np.asarray(self.sent_bytes) / len(self.step_secs)
        return {
            "steps_per_sec": len(measured) / sum(measured),
            "step_ms_p50": 1000 * statistics.median(measured),
            "step_ms_p90": 1000 * deciles[8],
            "sent_bytes_per_step": float(sent_bytes.sum()),
            "sent_bytes_by_variable": sent_bytes.tolist(),
        }
