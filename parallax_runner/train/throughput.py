"""Measures step times. Omits the first steps, which include setup."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WARM_UP_STEPS = 5
FIGURES = (
    *("steps_per_sec", "step_ms_p50", "step_ms_p90", "data_wait_share"),
    *("sent_bytes_per_step", "sent_bytes_by_variable"),
)


@dataclass
class Throughput:
    """The duration of each step in seconds, and the bytes sent in all steps together.

    The step times in `figures` omit up to WARM_UP_STEPS steps at the start.
    """

    step_secs: list[float] = field(default_factory=list)
    wait_secs: list[float] = field(default_factory=list)  # the part of each step that waited for its batch, if known
    sent_bytes: np.ndarray | float = 0.0
    _waited_secs: float | None = None

    def add(self, step_secs: float, sent_bytes: np.ndarray, steps: int = 1) -> None:
        """Records one step, or `steps` steps that were completed in `step_secs` seconds. `steps` is 0 if the step never
        completes.

        `DistributedGraph` describes the elements of `sent_bytes`.
        """
        if steps:
            self.wait_secs += [] if self._waited_secs is None else [self._waited_secs / steps] * steps
            self.step_secs += [step_secs / steps] * steps
            self.sent_bytes = self.sent_bytes + sent_bytes

    def waited(self, secs: float) -> None:
        """Records how long the next step has waited for its batch. `add` then records the step."""
        self._waited_secs = secs

    def begin_again(self) -> None:
        """Discards all measurements. Call this method when later steps are not comparable with earlier steps."""
        self.step_secs, self.wait_secs, self.sent_bytes = [], [], 0.0

    def figures(self) -> dict[str, Any]:
        """Returns steps per second, percentiles of step times in milliseconds, the share of the time of the steps in
        which they waited for their batches, and mean bytes per step.

        The share is None if no one has recorded it. The bytes are given in total and by variable, as in
        `DistributedGraph`. All figures are None if no step ran.
        """
        first = min(WARM_UP_STEPS, len(self.step_secs) // 2)
        measured = self.step_secs[first:]
        if not measured:
            return dict.fromkeys(FIGURES)
        deciles = statistics.quantiles(measured, n=10, method="inclusive") if len(measured) > 1 else measured * 9
        sent_bytes = np.asarray(self.sent_bytes) / len(self.step_secs)
        return {
            "steps_per_sec": len(measured) / sum(measured),
            "step_ms_p50": 1000 * statistics.median(measured),
            "step_ms_p90": 1000 * deciles[8],
            "data_wait_share": sum(self.wait_secs[first:]) / sum(measured) if self.wait_secs else None,
            "sent_bytes_per_step": float(sent_bytes.sum()),
            "sent_bytes_by_variable": sent_bytes.tolist(),
        }
