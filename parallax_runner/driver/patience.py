"""`train.patience`: ends a training whose validations find nothing better any more."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.epochs import Epochs, MakeEpochs
from parallax_runner.track.run_record import RunRecord

log = logging.getLogger(__name__)


@dataclass
class Patience:
    """Implements `EpochCalls`, where an epoch is what lies between two validations. `most` of them in a row may find no
    better value of the record's goal. A run that is started again by hand counts anew."""

    record: RunRecord
    most: int
    learning_rate: None = None
    _best: float | None = None
    _without: int = 0

    def begin(self, epoch: int) -> None:
        """Nothing is to be done before."""

    def end(self, epoch: int) -> None:
        """Looks at the validation that the epoch ended with."""
        goal = self.record.goal
        value = goal.in_validation(self.record.validation)
        if value is None or not math.isfinite(value):
            self._without += 1
        elif self._best is None or goal.is_better(value, self._best):
            self._best, self._without = value, 0
        else:
            self._without += 1
        if self.stops:
            log.info("validation %d: no better %s in %d validations: the end", epoch + 1, goal.name, self._without)

    @property
    def stops(self) -> bool:
        """Whether it has lasted long enough."""
        return self._without >= self.most


def epochs_of(config: RunConfig) -> MakeEpochs | None:
    """What makes epochs that end with a validation; None where the training does not end before its last step."""
    most, steps = config.train.patience, config.train.validate_steps
    if config.action != "train" or most is None or steps is None:
        return None
    return lambda record: Epochs(steps, Patience(record, most), record.workers)
