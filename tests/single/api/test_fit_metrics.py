"""The metrics that `fit` computes beside those of the model, and their groups."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.api.fit_arguments import check_metrics
from parallax_runner.api.fit_metrics import ValidationMetrics
from parallax_runner.errors import CaptureError, ConfigError

X = {"user": np.array([1, 2]), "wide": np.ones([2, 3], np.float32)}
Y = tf.ones([2, 1])


def functional(*names: str) -> Any:
    inputs = {name: keras.Input([3] if name == "wide" else [], name=name) for name in names}
    return keras.Model(inputs, keras.layers.Dense(1)(inputs["wide"]))


class Own(keras.Model):
    """A model that takes whatever it is given."""

    def call(self, x: Any) -> Any:
        return x["wide"]


@pytest.mark.parametrize(("model", "is_passed"), [(functional("wide"), False), (Own(), True)])
@pytest.mark.parametrize("element", [(X, Y), (X, Y, tf.ones([2])), X])
def test_groups_that_are_no_input_are_not_passed(model: Any, is_passed: bool, element: Any) -> None:
    made = ValidationMetrics(("gauc",), "user").for_model(lambda _: element, model)({})
    x = made[0] if isinstance(element, tuple) else made
    assert list(x) == (["user", "wide"] if is_passed else ["wide"])
    if isinstance(element, tuple):
        assert made[1:] == element[1:]


def test_groups_that_are_an_input_are_passed() -> None:
    x = keras.Input([], name="user", dtype="int64")
    model = keras.Model({"user": x}, keras.layers.Embedding(9, 1)(x))

    def element(_: Any) -> Any:
        return X, Y

    assert ValidationMetrics(("gauc",), "user").for_model(element, model) is element
    assert ValidationMetrics().for_model(element, functional("wide")) is element


@pytest.mark.parametrize(
    ("metrics", "element", "said"),
    [
        (ValidationMetrics(("guac",), "user"), (X, Y), "validation_metrics=['guac'] (fit): «guac» is no metric; "),
        (ValidationMetrics(("gauc",)), (X, Y), "needs the group of each example; pass groups, the key of x that has"),
        (ValidationMetrics(("gauc",), "query"), (X, Y), "groups=query (fit): expected a key of x, but it has the keys"),
        (ValidationMetrics(("gauc",), "user"), (X["wide"], Y), "expected a key of x, but it is no dict"),
        (ValidationMetrics(("rmse",)), (X, {"one": Y, "two": Y}), "these metrics need one label, so y must be one ar"),
    ],
)
def test_what_cannot_be_computed_is_refused(metrics: ValidationMetrics, element: Any, said: str) -> None:
    with pytest.raises(CaptureError) as raised:
        named = metrics.named(lambda _: element)
        assert named is not None
        named.in_batch(functional("wide"), tf.zeros([2, 1]), {})
    assert said in str(raised.value)


def test_metrics_need_a_validation_and_groups_need_metrics() -> None:
    assert ValidationMetrics().named(lambda _: (X, Y)) is None
    check_metrics(ValidationMetrics(("gauc",), "user"), is_validated=True)
    check_metrics(ValidationMetrics(), is_validated=False)
    with pytest.raises(ConfigError, match=r"there is no validation data, .*pass validation_data or validation_split"):
        check_metrics(ValidationMetrics(("gauc",), "user"), is_validated=False)
    with pytest.raises(ConfigError, match=r"groups=user \(fit\): no metric uses these groups"):
        check_metrics(ValidationMetrics((), "user"), is_validated=True)
