"""Which Keras models and training steps the capture refuses, each with one sentence."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph.traced.capture_step import capture_step
from tests.single.graph.traced.captures import FEATURES, LABELS, captured, dict_model, model, squares, step_of


def test_a_model_that_is_not_compiled_is_refused() -> None:
    def make() -> Any:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="bare")

    with pytest.raises(CaptureError, match=r"«bare» is not compiled: call model\.compile\("):
        captured(make)


def test_an_input_that_is_no_feature_is_named() -> None:
    features = {"k": FEATURES["ids"], **{name: FEATURES[name] for name in ("x", "y")}}
    with pytest.raises(CaptureError, match=r"needs the input «ids»; the data has \['k', 'x'\]"):
        captured(dict_model, features=features)


@pytest.mark.parametrize("key", ["labels", "sample_weight"])
def test_what_is_no_feature_is_refused(key: str) -> None:
    with pytest.raises(
        CaptureError, match=rf"model\.{key}=absent: the data has no such feature; it has \['ids', 'x', 'y'\]"
    ):
        captured(model, LABELS | {key: "absent"})


@pytest.mark.parametrize("key", ["labels", "sample_weight"])
def test_labels_beside_a_step_are_refused(key: str) -> None:
    with pytest.raises(CaptureError, match=rf"model\.{key} needs a Keras model"):
        captured(step_of(squares), {key: "y"})


def test_a_variable_of_the_module_is_refused() -> None:
    outside = tf.Variable(2.0, name="outside")
    with pytest.raises(CaptureError, match=r"create variables in the model or in the function.*outside"):
        captured(step_of(lambda weights, batch: squares(weights, batch) * outside), {})


def test_a_gradient_that_is_taken_in_a_branch_is_refused() -> None:
    def make() -> Any:
        weights = tf.Variable(tf.ones([3, 1]), name="weights")

        @tf.function
        def step(batch: dict[str, Any]) -> Any:
            loss = squares(weights, batch)
            if loss > 0.5:
                with tf.GradientTape() as tape:
                    loss = squares(weights, batch)
                weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss

        return step

    with pytest.raises(CaptureError, match=r"«weights:0» is computed inside a branch.*compute it outside"):
        captured(make, {})


def test_a_step_without_a_gradient_is_refused() -> None:
    def make() -> Any:
        weights = tf.Variable(tf.ones([3, 1]), name="weights")

        def step(batch: dict[str, Any]) -> Any:
            weights.assign_add(tf.ones([3, 1]))
            return squares(weights, batch)

        return step

    with pytest.raises(CaptureError, match="no gradient reaches the train op"):
        captured(make, {})


@pytest.mark.parametrize("returned", [None, 3, {"accuracy": 1.0}])
def test_a_step_that_returns_no_loss_is_refused(returned: Any) -> None:
    def make() -> Any:
        step = step_of(squares)()

        def without_loss(batch: dict[str, Any]) -> Any:
            step(batch)
            return returned

        return without_loss

    with pytest.raises(CaptureError, match="must return its loss, a floating-point scalar"):
        captured(make, {})


@pytest.mark.parametrize("made", [None, 3, keras.layers.Dense])
def test_what_is_neither_a_model_nor_a_step_is_refused(made: Any) -> None:
    with pytest.raises(CaptureError, match=r"must return a compiled keras\.Model, a function"):
        captured(lambda: made, {})


@pytest.mark.parametrize("made", [keras.layers.Dense(1), keras.losses.MeanSquaredError()])
@pytest.mark.parametrize("options", [{}, LABELS])
def test_an_object_of_keras_that_is_no_model_is_refused(made: Any, options: dict[str, Any]) -> None:
    """It can be called, as a step can."""
    expected = rf"returned a {type(made).__name__} from keras\..* is not a keras\.Model: return a compiled keras\.Model"
    with pytest.raises(CaptureError, match=expected):
        captured(lambda: made, options)


def test_a_model_of_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(CaptureError, match=r"uses the backend jax, .* set KERAS_BACKEND=tensorflow"):
        captured(model)


def test_a_batch_size_that_a_replica_does_not_have_is_told_in_one_sentence() -> None:
    def stateful() -> Any:
        x = keras.Input([4, 3], batch_size=8, name="x")
        made = keras.Model(x, keras.layers.Dense(1)(keras.layers.LSTM(2, stateful=True)(x)), name="lstm")
        made.compile("sgd", "mse")
        return made

    def features(size: int) -> dict[str, Any]:
        return {"x": ((size, 4, 3), "float32"), "y": ((size, 1), "float32")}

    with pytest.raises(CaptureError, match=r"«lstm» have the fixed batch size 8, .* a replica gets 4 examples of each"):
        capture_step(stateful, features(4), seed=1, options={"labels": "y"})
    capture_step(stateful, features(8), seed=1, options={"labels": "y"})
