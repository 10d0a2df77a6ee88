"""The objective: the quantity by which validations, checkpoints and the jobs of a sweep are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Direction = Literal["minimize", "maximize"]
DIRECTIONS: tuple[Direction, ...] = ("minimize", "maximize")


@dataclass(frozen=True)
class Goal:
    """A quantity to minimize or maximize.

    `name` is the displayed name. `metric` is the name in a validation's results, or None for the loss of training
    steps."""

    name: str
    metric: str | None
    direction: Direction = "minimize"

    def is_better(self, value: float, other: float) -> bool:
        """Returns whether `value` is better than `other`."""
        return value < other if self.direction == "minimize" else value > other

    def in_validation(self, results: Mapping[str, Any]) -> float | None:
        """Returns the value `validation/NAME` from a validation's results, or None if this value is missing."""
        return None if self.metric is None else results.get(f"validation/{self.metric}")


def maximizes(direction: Any) -> bool:
    """Returns whether a sweeper maximizes its objective. `direction` is Hydra's value: a member of an enumeration, or a
    string."""
    return bool(getattr(direction, "name", direction) == "maximize")


TRAINING_LOSS = Goal("training loss", None)
VALIDATION_LOSS = Goal("validation loss", "loss")
# The exponential of the validation loss, under a separate name.
PERPLEXITY = Goal("perplexity", "perplexity")


class Objective(NamedTuple):
    """The value of a run's objective, with its name and direction."""

    name: str
    value: float | None
    direction: Direction = "minimize"
