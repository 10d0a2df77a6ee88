"""The earlier calls of `fit` in this process. A later call with the same data continues with the next epoch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from parallax_runner.api.fit_data import kind_with_batches
from parallax_runner.errors import StorageError


@dataclass(frozen=True)
class GivenData:
    """The training and validation data of a call, as the script passes them. Only data that has batches of its own is
    recognized in a later call."""

    train: Callable[[], Any]
    validation: Callable[[], Any]

    @classmethod
    def of(cls, x: Any, validation_data: Any) -> Self:
        """Returns the data of a call. Keeps no array alive."""
        return cls(_reference(x), _reference(validation_data))


def _reference(data: Any) -> Callable[[], Any]:
    return (lambda: None) if kind_with_batches(data) is None else weakref.ref(data)


@dataclass(frozen=True)
class EarlierCall:
    """A finished call: the common start of the paths of its result, its data, its numbers of steps, epochs and
    validations, and the reason why its result was not written, or None."""

    stem: Path
    data: GivenData
    steps: int
    epochs: int
    validations: int
    fault: str | None = None

    @classmethod
    def of(cls, stem: Path, data: GivenData, steps: int, history: Any, fault: str | None = None) -> Self:
        """Returns a call that has left `history`."""
        validated = [len(values) for key, values in history.history.items() if key.startswith("val_")]
        return cls(stem, data, steps, len(history.epoch), max(validated, default=0), fault)


@dataclass(frozen=True)
class Before:
    """What happened to the data of a call before the call: the number of steps and, for each call with this data, the
    number of epochs. `validations` is the number of validations with the same validation data."""

    steps: int = 0
    epochs: tuple[int, ...] = ()
    validations: int = 0


finished: list[EarlierCall] = []


def before(data: GivenData) -> Before:
    """Returns what happened to the data of a call. As in Keras, a dataset begins with its first pass if no earlier call
    had the same object. Arrays are shuffled in another way in each call."""
    train, validation = data.train(), data.validation()
    calls = [one for one in finished if train is None or one.data.train() is train]
    validated = [one for one in finished if validation is not None and one.data.validation() is validation]
    return Before(
        steps=sum(one.steps for one in calls),
        epochs=tuple(one.epochs for one in calls),
        validations=sum(one.validations for one in validated),
    )


def refuse_lost_results() -> None:
    """Raises StorageError if the result of an earlier call was not written, because the workers need this result."""
    for earlier in finished:
        if earlier.fault is not None:
            raise StorageError(
                f"fit: the workers of this call need the result of an earlier call, {earlier.stem}.npz, which was not "
                f"written: {earlier.fault}; free disk space, and start the script again"
            )
