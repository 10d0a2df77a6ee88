"""The values that `fit` accepts for its arguments, and one that it refuses for each of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import pytest

from parallax_runner.api.fit_arguments import Arguments, check_arguments
from parallax_runner.errors import ConfigError


def model(*, is_compiled: bool = True) -> keras.Model:
    made = keras.Sequential([keras.layers.Dense(1)])
    if is_compiled:
        made.compile("sgd", "mse")
    return made


ACCEPTED = Arguments(
    model=model(),
    epochs=3,
    initial_epoch=2,
    validation_freq=[1, 3],
    validation_steps=None,
    validation_batch_size=1,
    verbose=0,
    callbacks=[],
)


@pytest.mark.parametrize(
    "changes", [{}, {"initial_epoch": 0, "epochs": 1}, {"verbose": 2, "validation_freq": 5, "validation_steps": 4}]
)
def test_accepted(changes: dict[str, Any]) -> None:
    check_arguments(dataclasses.replace(ACCEPTED, **changes))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 2.0),
        ("initial_epoch", 3),
        ("initial_epoch", -1),
        ("validation_freq", True),
        ("validation_steps", "1"),
        ("validation_batch_size", 0),
        ("verbose", "no"),
    ],
)
def test_refused_with_its_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name}={value!r} \(fit\): expected"):
        check_arguments(dataclasses.replace(ACCEPTED, **{name: value}))


def test_what_is_not_a_compiled_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"call model\.compile"):
        check_arguments(dataclasses.replace(ACCEPTED, model=model(is_compiled=False)))
    with pytest.raises(ConfigError, match=r"fit trains a compiled keras\.Model, not <object"):
        check_arguments(dataclasses.replace(ACCEPTED, model=object()))
