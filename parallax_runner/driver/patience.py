"""`train.patience`: ends training when validations no longer improve."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parallax_runner.checkpoints.best import read_best
from parallax_runner.checkpoints.checkpoint_files import read_sidecar
from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.data_position import START
from parallax_runner.driver.epochs import Epochs, MakeEpochs
from parallax_runner.track.run_record import RunRecord

log = logging.getLogger(__name__)


@dataclass
class Patience:
    """Implements `EpochCalls`. Here, an epoch is the time between two validations. Training ends after `most`
    consecutive validations without a better value of the record's goal. A run that goes on from a checkpoint counts
    the validations before it, too."""

    record: RunRecord
    most: int
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    _best: float | None = None
    _without: int = 0

    def go_on_after(self, prefix: Path, step: int, steps: int) -> None:
        """Counts the validations up to `step`, one every `steps` steps, of the run that wrote the checkpoint `prefix`.
        Counts none if it does not say which of its validations was the best for this goal."""
        best = read_best(prefix.parent)
        if best is None or best.step is None or best.objective != self.record.goal.name or best.step > step:
            return
        self._best, self._without = best.value, step // steps - best.step // steps

    def begin(self, epoch: int) -> None:
        """Does nothing."""

    def end(self, epoch: int, step: int) -> None:
        """Checks the validation at the end of the epoch."""
        del step
        goal = self.record.goal
        value = goal.in_validation(self.record.validation)
        if value is None or not math.isfinite(value):
            self._without += 1
        elif self._best is None or goal.is_better(value, self._best):
            self._best, self._without = value, 0
        else:
            self._without += 1
        if self.stops:
            log.info(
                "validation %d: no better %s in %d validations, so training ends", epoch + 1, goal.name, self._without
            )

    @property
    def stops(self) -> bool:
        """Whether the last `most` validations found no better value."""
        return self._without >= self.most


def epochs_of(config: RunConfig) -> MakeEpochs | None:
    """Returns the function that creates epochs. Each epoch ends with a validation. Returns None if there is no patience
    limit."""
    most, steps = config.train.patience, config.train.validate_steps
    if not action_of(config).trains or most is None or steps is None:
        return None

    def make(record: RunRecord, resumes_from: Path | None) -> Epochs:
        patience = Patience(record, most)
        epochs = Epochs(steps, patience, record.workers)
        # At the first example, the checkpoint is that of another training, such as yesterday's.
        if resumes_from is None or config.ckpt.position == START:
            return epochs
        step = read_sidecar(resumes_from).step
        patience.go_on_after(resumes_from, step, steps)
        if patience.stops:
            epochs.end_at(step)
            record.display.say(
                f"training has ended at step {step}: {most} validations (train.patience) found nothing better"
            )
        return epochs

    return make
