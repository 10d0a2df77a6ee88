"""What the validations and checkpoints of a run, and the jobs of a sweep, are compared by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Direction = Literal["minimize", "maximize"]
DIRECTIONS: tuple[Direction, ...] = ("minimize", "maximize")


@dataclass(frozen=True)
class Goal:
    """`name` is for people; `metric` is the name among a validation's results, None for the loss of training steps."""

    name: str
    metric: str | None
    direction: Direction = "minimize"

    def is_better(self, value: float, other: float) -> bool:
        """Whether `value` is better than `other`."""
        return value < other if self.direction == "minimize" else value > other

    def in_validation(self, results: Mapping[str, Any]) -> float | None:
        """The value among a validation's results, by `validation/NAME`; None where it is not there."""
        return None if self.metric is None else results.get(f"validation/{self.metric}")


def maximizes(direction: Any) -> bool:
    """Whether a sweeper looks for the largest value; `direction` is Hydra's, an enumeration or text."""
    return bool(getattr(direction, "name", direction) == "maximize")


TRAINING_LOSS = Goal("training loss", None)
VALIDATION_LOSS = Goal("validation loss", "loss")
# The exponential of the validation loss, under a name of its own.
PERPLEXITY = Goal("perplexity", "perplexity")


class Objective(NamedTuple):
    """One number of a run, what it is, and which direction is better."""

    name: str
    value: float | None
    direction: Direction = "minimize"
