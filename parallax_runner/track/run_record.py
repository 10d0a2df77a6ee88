"""Makes one account of a run out of what its ranks report: means over ranks, the display, metrics, `summary.json`."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax_runner.track.progress import ProgressDisplay, Standing
from parallax_runner.track.tracker import Tracker

SUMMARY = "summary.json"


@dataclass
class RunRecord:
    """What is known of a run so far. `workers` ranks report; `global_batch` examples a step, of `words_per_example`
    words each where words make sense."""

    workers: int
    steps: int
    log_every: int
    global_batch: int
    words_per_example: int | None
    tracker: Tracker
    display: ProgressDisplay
    first_step: int = 0
    started_secs: float = field(default_factory=time.monotonic)
    startup_secs: float | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    last_step: int = 0
    _losses: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def on_progress(self, rank: int, step: int, losses: list[float], secs: float) -> None:
        """One rank's losses of the steps up to `step`, which took it `secs` together."""
        if self.startup_secs is None:
            self.startup_secs = time.monotonic() - self.started_secs - secs
        for offset, loss in enumerate(losses):
            self._losses[step - len(losses) + 1 + offset][rank] = loss
        if len(self._losses[step]) < self.workers:
            return
        means = {
            number: statistics.fmean(by_rank.values())
            for number, by_rank in sorted(self._losses.items())
            if len(by_rank) == self.workers
        }
        for number in means:
            del self._losses[number]
        if self.loss_first is None:
            self.loss_first = means[min(means)]
        self.loss_last, self.last_step = means[step], step
        steps_per_sec = len(losses) / secs if secs > 0 else None
        self._show(step, self.loss_last, steps_per_sec)

    def _show(self, step: int, loss: float, steps_per_sec: float | None) -> None:
        rates = self.rates(steps_per_sec)
        self.tracker.log_metrics(
            step,
            {
                "train/loss": loss,
                "throughput/steps_per_sec": steps_per_sec,
                "throughput/examples_per_sec": rates["examples_per_sec"],
                "throughput/words_per_sec": rates["words_per_sec"],
            },
        )
        self.display.update(Standing(step=step, steps=self.steps, loss=loss, steps_per_sec=steps_per_sec, **rates))

    def rates(self, steps_per_sec: float | None) -> dict[str, float | None]:
        """Examples and words a second over all ranks."""
        examples = None if steps_per_sec is None else steps_per_sec * self.global_batch
        words = None if examples is None or self.words_per_example is None else examples * self.words_per_example
        return {"examples_per_sec": examples, "words_per_sec": words}


def validation_result(done: Mapping[int, Mapping[str, Any]], metric: str | None) -> dict[str, float]:
    """The mean validation loss over all ranks' batches, and the metric that is its exponential, if it has a name."""
    batches = sum(fields.get("validation_batches", 0) for fields in done.values())
    if not batches:
        return {}
    mean = sum(fields["validation_loss_sum"] for fields in done.values()) / batches
    result = {"validation/loss": mean}
    if metric:
        # Beyond this a double overflows; such a model has learnt nothing anyway.
        result[f"validation/{metric}"] = math.exp(min(mean, 700.0))
    return result


def write_summary(run_dir: Path, fields: Mapping[str, Any]) -> Path:
    """Writes `summary.json`, one flat object; what is not a finite number becomes null, since JSON has no NaN."""
    path = run_dir / SUMMARY
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in fields.items()
    }
    path.write_text(json.dumps(finite, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path
