"""The state of an epoch of `fit` in a checkpoint's sidecar."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from parallax_runner.train.metric_sums import NOTHING, Sums


@dataclass(frozen=True)
class EpochState:
    """What a run needs, beside the variables, to continue within an epoch as if it had not stopped.

    `number` is the number of the epoch, counted from 0. `first` is the number of the run's first epoch, and `steps` is
    the number of steps in each epoch. `call` is the number of the call of `fit`, counted from 1 among the calls of a
    script that use the same checkpoint folder. `has_begun` is whether the callbacks' `on_epoch_begin` has been called
    for the epoch. `rates_before` and `rates` are the learning rates that callbacks can change, by the names of their
    variables, before and after these calls. `callbacks` is the callbacks' state before these calls. `sums` are the
    metric sums of the epoch's steps so far. `stops` is whether a callback has requested to stop before this epoch.
    """

    number: int
    first: int
    steps: int
    call: int
    rates_before: Mapping[str, float]
    callbacks: Mapping[str, Any]
    rates: Mapping[str, float] = field(default_factory=dict)
    has_begun: bool = False
    stops: bool = False
    sums: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, Any] | None) -> Self | None:
        """Returns the state in a sidecar. Returns None if the sidecar has no state, or a state that this version does
        not know."""
        if fields is None:
            return None
        names = {entry.name for entry in dataclasses.fields(cls)}
        try:
            return cls(**{name: value for name, value in fields.items() if name in names})
        except TypeError:
            return None

    def fields(self, sums: Sums = NOTHING) -> dict[str, Any]:
        """Returns the fields for a sidecar, with the sums of the steps so far."""
        named = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {**named, "sums": sums.fields()}
