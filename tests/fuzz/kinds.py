"""The kinds of models that were wrong without a message, and that every set of random models must contain."""

from __future__ import annotations

from collections.abc import Iterable

# A loop or branch writes a variable.
LOOP = "written: a loop writes a variable and reads it"
BRANCH = "written: a branch writes a variable and reads it"
CHOSEN_UPDATE = "written: an optimizer is applied in a branch"
AVERAGE_IN_BRANCH = "written: a branch keeps a moving average"
LAYER_LOOP = "written: a loop in a layer writes a variable and reads it"
LAYER_BRANCH = "written: a branch in a layer writes a variable and reads it"
# A gradient of something that was read from a variable.
ROWS = "read: gradient of looked-up rows"
COPY = "read: gradient of a copy"
# Own optimizers.
NO_CONFIG = "own: no get_config, and all rows decay"
LATE = "own: all rows decay from a later step on"
SET_LATER = "own: the decay is set after the optimizer is created"
COUPLED = "own: a row's update depends on other rows"
WITH_CONFIG = "own: get_config is complete, and all rows decay"
# Losses that are not a mean over the batch.
ADDED_SUM = "loss: add_loss of a sum"
OWN_SUM = "loss: an own function returns a sum"
REDUCED_SUM = "loss: a reduction to a sum"
MASKED_MEAN = "loss: a sum divided by the sum of a mask"
STEP_SUM = "loss: a step's loss is a sum"
STEP_MASKED_MEAN = "loss: a step's loss is a mean over a mask"

# The four groups, by number in the list of faults that made this test necessary.
GROUPS: dict[str, tuple[str, ...]] = {
    "written": (LOOP, BRANCH, CHOSEN_UPDATE, AVERAGE_IN_BRANCH, LAYER_LOOP, LAYER_BRANCH),
    "read": (ROWS, COPY),
    "own": (NO_CONFIG, LATE, SET_LATER, COUPLED, WITH_CONFIG),
    "loss": (ADDED_SUM, OWN_SUM, REDUCED_SUM, MASKED_MEAN, STEP_SUM, STEP_MASKED_MEAN),
}
SUMS = (ADDED_SUM, OWN_SUM, REDUCED_SUM, STEP_SUM)
NEITHER = (MASKED_MEAN, STEP_MASKED_MEAN)


def groups_of(labels: Iterable[str]) -> set[str]:
    """Returns the groups of a model's labels."""
    given = set(labels)
    return {group for group, kinds in GROUPS.items() if given & set(kinds)}


def must_be_named(labels: Iterable[str]) -> bool:
    """Returns whether a term of the model's loss must be named before the first step."""
    return bool(set(labels) & {*SUMS, *NEITHER})
