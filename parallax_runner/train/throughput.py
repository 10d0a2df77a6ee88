"""Times of steps, without the first ones, which pay for set-up."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

WARM_UP_STEPS = 5


@dataclass
class Throughput:
    """Collects the seconds of each step; figures leave out up to WARM_UP_STEPS at the start."""

    step_secs: list[float] = field(default_factory=list)
    sent_bytes: list[float] = field(default_factory=list)

    def add(self, step_secs: float, sent_bytes: float, steps: int = 1) -> None:
        """Notes one step, or several that passed meanwhile; none where the step was never complete."""
        self.step_secs += [step_secs / steps] * steps if steps else []
        self.sent_bytes += [sent_bytes / steps] * steps if steps else []

    def begin_again(self) -> None:
        """Forgets all: what comes is not of the same kind."""
        self.step_secs, self.sent_bytes = [], []

    def figures(self) -> dict[str, float | None]:
        """Steps a second over the time measured, percentiles in milliseconds, mean bytes; None where nothing ran."""
        measured = self.step_secs[min(WARM_UP_STEPS, len(self.step_secs) // 2) :]
        if not measured:
            return {"steps_per_sec": None, "step_ms_p50": None, "step_ms_p90": None, "sent_bytes_per_step": None}
        deciles = statistics.quantiles(measured, n=10, method="inclusive") if len(measured) > 1 else measured * 9
        return {
            "steps_per_sec": len(measured) / sum(measured),
            "step_ms_p50": 1000 * statistics.median(measured),
            "step_ms_p90": 1000 * deciles[8],
            "sent_bytes_per_step": statistics.fmean(self.sent_bytes),
        }
