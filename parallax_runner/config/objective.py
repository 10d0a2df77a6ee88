"""What the jobs of a sweep are compared by, and which direction is better."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Direction = Literal["minimize", "maximize"]

TRAINING_LOSS = "training loss"
VALIDATION_LOSS = "validation loss"
# Each is the exponential of the validation loss, under another name.
VALIDATION_METRICS = ("perplexity",)
DIRECTIONS: Mapping[str, Direction] = dict.fromkeys((*VALIDATION_METRICS, VALIDATION_LOSS, TRAINING_LOSS), "minimize")


class Objective(NamedTuple):
    """One number of a run, and what it is: a key of `DIRECTIONS`."""

    name: str
    value: float | None


def objective_of(summary: Mapping[str, Any]) -> Objective:
    """The best measure that a summary has: the validation metric, else the validation loss, else the training loss."""
    for metric in VALIDATION_METRICS:
        if f"validation_{metric}" in summary:
            return Objective(metric, summary[f"validation_{metric}"])
    if "validation_loss" in summary:
        return Objective(VALIDATION_LOSS, summary["validation_loss"])
    return Objective(TRAINING_LOSS, summary["loss_last"])


def direction_of(name: str | None) -> Direction:
    """Which values of an objective are better; of one without a known name the smaller ones, like those of a loss."""
    return DIRECTIONS.get(name or TRAINING_LOSS, "minimize")
