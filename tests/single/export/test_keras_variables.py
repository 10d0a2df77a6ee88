"""Which variables of a Keras model a checkpoint is loaded into: those of the model, then those of its optimizers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from parallax_runner.errors import CheckpointError
from parallax_runner.export.keras_weights import variables_by_path


def model_of(optimizer: Any = None, **more: Any) -> Any:
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="out")], name="small")
    if optimizer is not None:
        model.compile(optimizer, loss="mse", **more)
    return model


def test_a_model_without_an_optimizer_has_its_own_variables() -> None:
    model = model_of()
    found = variables_by_path(model)
    assert list(found) == ["small/out/kernel", "small/out/bias"]
    assert [id(one) for one in found.values()] == [id(one) for one in model.variables]


@pytest.mark.parametrize("is_built_first", [False, True])
def test_the_optimizer_is_built_if_it_must_be(is_built_first: bool) -> None:
    model = model_of(keras.optimizers.Adagrad(0.1))
    if is_built_first:
        model.optimizer.build(model.trainable_variables)
    found = variables_by_path(model)
    assert model.optimizer.built
    assert list(found)[:2] == ["small/out/kernel", "small/out/bias"]
    assert {id(one) for one in found.values()} == {id(one) for one in [*model.variables, *model.optimizer.variables]}


def test_variables_of_layers_that_do_not_train_are_among_them() -> None:
    model = model_of(keras.optimizers.SGD(0.1, momentum=0.9))
    model.get_layer("out").trainable = False
    found = variables_by_path(model)
    assert "small/out/kernel" in found
    assert not any("momentum" in path for path in found)


class TwoOptimizers(keras.Model):
    """Has a `train_step` of its own, with an optimizer that `compile` does not know."""

    def __init__(self) -> None:
        super().__init__(name="two")
        self.dense = keras.layers.Dense(1, name="out")
        self.inner = keras.optimizers.SGD(0.1, momentum=0.9, name="inner")

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> Any:
        raise NotImplementedError


def test_optimizers_of_an_own_step_count_once_they_are_built() -> None:
    model = TwoOptimizers()
    model(np.zeros([1, 2], "float32"))
    assert list(variables_by_path(model)) == ["two/out/kernel", "two/out/bias"]
    model.inner.build(model.trainable_variables)
    found = variables_by_path(model)
    assert {id(one) for one in found.values()} == {id(one) for one in [*model.variables, *model.inner.variables]}
    assert any(path.startswith("inner/") for path in found)


def test_a_model_without_variables_is_no_fault_if_it_is_built() -> None:
    empty = keras.Sequential([keras.Input([2]), keras.layers.Flatten()])
    assert variables_by_path(empty) == {}


def test_a_model_that_is_not_built_is_refused() -> None:
    unbuilt = keras.Sequential([keras.layers.Dense(1)], name="laté")
    with pytest.raises(CheckpointError, match=r"model «laté» is not built.*Call the model on a batch first"):
        variables_by_path(unbuilt)


def test_a_variable_that_two_layers_share_is_no_second_one() -> None:
    shared = keras.layers.Dense(2, name="shared")
    inputs = keras.Input([2])
    model = keras.Model(inputs, shared(shared(inputs)), name="twice")
    assert list(variables_by_path(model)) == ["shared/kernel", "shared/bias"]
