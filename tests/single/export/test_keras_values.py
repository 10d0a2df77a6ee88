"""The values in a file of Keras are those that `load_weights` would load, and the model keeps its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from parallax_runner.errors import CheckpointError
from parallax_runner.export.keras_values import missing, read_values
from parallax_runner.export.keras_weights import variables_by_path

KEY = "ckpt.warm_start"


@keras.saving.register_keras_serializable(package="test_keras_values")
class Scaled(keras.layers.Layer):
    """A custom layer with a variable and a generator."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = keras.layers.Dropout(0.5)

    def build(self, shape: Any) -> None:
        self.factor = self.add_weight(shape=(shape[-1],), name="factor")

    def call(self, x: Any) -> Any:
        return self.dropout(x) * self.factor


def make(*, hidden: int = 4, names: tuple[str, ...] = ("first", "scaled", "last"), trained: bool = False) -> Any:
    x = keras.Input((3,), name="x")
    first = keras.layers.Dense(hidden, name=names[0])(x)
    scaled = Scaled(name=names[1])(keras.layers.BatchNormalization(name="norm")(first))
    model = keras.Model(x, keras.layers.Dense(1, name=names[2])(scaled), name="model")
    model.compile(keras.optimizers.Adam(name="adam"), "mse")
    if trained:
        model.fit(np.ones([8, 3]), np.arange(8.0), batch_size=4, epochs=2, verbose=0)
    else:
        model.optimizer.build(model.trainable_variables)
    return model


def values_of(model: Any) -> dict[str, np.ndarray]:
    """Returns the values of all variables that Keras saves."""
    variables = variables_by_path(model).items()
    return {path: np.asarray(variable) for path, variable in variables if "seed_generator" not in path}


def check(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_all_values_are_read_and_the_model_keeps_its_own(ending: str, tmp_path: Path) -> None:
    saved = make(trained=True)
    path = tmp_path / f"saved{ending}"
    (saved.save if ending == ".keras" else saved.save_weights)(path)
    model = make()
    before = values_of(model)
    found = read_values(path, model, key=KEY)
    check(found, values_of(saved))
    check(values_of(model), before)
    assert not missing(found.keys(), model)
    model.load_weights(path)
    check(values_of(model), found)


def test_automatic_names_are_matched_by_place(tmp_path: Path) -> None:
    saved = make(trained=True, names=("dense_7", "scaled_3", "dense_8"))
    saved.save(tmp_path / "saved.keras")
    model = make(names=("dense", "scaled", "dense_1"))
    found = read_values(tmp_path / "saved.keras", model, key=KEY)
    model.load_weights(tmp_path / "saved.keras")
    expected = values_of(model)
    check(found, expected)
    np.testing.assert_array_equal(found["dense/kernel"], values_of(saved)["dense_7/kernel"])


def test_named_layers_at_other_places_are_matched_by_name(tmp_path: Path) -> None:
    x = keras.Input((3,), name="x")
    saved = keras.Model(x, [keras.layers.Dense(2, name="b")(x), keras.layers.Dense(2, name="a")(x)], name="model")
    saved.compile("sgd", "mse")
    saved.save(tmp_path / "saved.keras")
    x = keras.Input((3,), name="x")
    model = keras.Model(x, [keras.layers.Dense(2, name="a")(x), keras.layers.Dense(2, name="b")(x)], name="model")
    model.compile("sgd", "mse")
    found = read_values(tmp_path / "saved.keras", model, key=KEY)
    for name in ("a/kernel", "b/kernel"):
        np.testing.assert_array_equal(found[name], values_of(saved)[name])


def recurrent(first: str, second: str) -> Any:
    x = keras.Input((5, 2), name="x")
    made = {name: keras.layers.LSTM(3, name=name)(x) for name in sorted((first, second))}
    model = keras.Model(x, [made[first], made[second]], name="model")
    model.compile("sgd", ["mse", "mse"])
    return model


def test_what_is_in_a_layer_stays_with_it(tmp_path: Path) -> None:
    """The names of the cells are automatic."""
    saved = recurrent("one", "two")
    saved.save(tmp_path / "saved.keras")
    found = read_values(tmp_path / "saved.keras", recurrent("two", "one"), key=KEY)
    expected = {layer.name: np.asarray(layer.cell.kernel) for layer in saved.layers if layer.name in ("one", "two")}
    for name, value in expected.items():
        np.testing.assert_array_equal(found[f"{name}/lstm_cell/kernel"], value)


def test_another_head_leaves_the_trunk(tmp_path: Path) -> None:
    saved = make(trained=True)
    saved.save(tmp_path / "saved.keras")
    model = make(names=("first", "scaled", "head"))
    found = read_values(tmp_path / "saved.keras", model, key=KEY)
    assert missing(found.keys(), model) == ["head/kernel", "head/bias"]
    np.testing.assert_array_equal(found["scaled/factor"], values_of(saved)["scaled/factor"])
    assert not any(name.startswith("adam") for name in found)


def test_a_value_keeps_the_shape_that_it_has_in_the_file(tmp_path: Path) -> None:
    make(hidden=5).save_weights(tmp_path / "saved.weights.h5")
    found = read_values(tmp_path / "saved.weights.h5", make(), key=KEY)
    assert found["first/kernel"].shape == (3, 5)


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_a_file_that_is_damaged_or_of_another_kind_is_refused(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"saved{ending}"
    path.write_text("no weights")
    with pytest.raises(
        CheckpointError, match=r"this file of Keras cannot be read: .*ckpt.warm_start|ckpt.warm_start.*"
    ):
        read_values(path, make(), key=KEY)


def test_a_layer_with_other_variables_is_refused(tmp_path: Path) -> None:
    x = keras.Input((3,), name="x")
    saved = keras.Model(x, keras.layers.Dense(4, name="first", use_bias=False)(x))
    saved.save_weights(tmp_path / "saved.weights.h5")
    with pytest.raises(CheckpointError, match="«first» does not fit: Layer 'first' expected 2 variables"):
        read_values(tmp_path / "saved.weights.h5", make(), key=KEY)
