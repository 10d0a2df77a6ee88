"""What `fit` refuses before anything is captured or launched."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import parallax_runner
from parallax_runner.api.fit_data import dataset_of
from parallax_runner.errors import ConfigError, DataError

X, Y = np.zeros([12, 2], np.float32), np.zeros([12, 1], np.float32)


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that was started plainly."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "train.py", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py"])


def model(*, compiled: bool = True) -> Any:
    made = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    if compiled:
        made.compile("sgd", "mse")
    return made


def dataset() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"epochs": 0}, r"epochs=0 \(fit\): expected an integer, at least 1"),
        ({"initial_epoch": 1}, r"initial_epoch=1 \(fit\): expected 0 to 0"),
        ({"batch_size": 3}, "a batch of 3 examples cannot be cut into 2 equal parts"),
        ({"comm": "hybird"}, "hybrid"),
        ({"workers": 0}, r"cluster.workers=0 \(fit\)"),
        ({"overrides": ["comm.sync=false"], "comm": "ps"}, "comm.sync=false"),
        ({"overrides": ["partition=search"]}, "with fit the plan cannot change"),
        ({"overrides": ["optimizer=adagrad"]}, r"optimizer=adagrad \(fit\): .*: remove this setting, and change model"),
        ({"overrides": ["ckpt=off"]}, r"ckpt=off \(fit\): the trained weights come back in a checkpoint"),
        ({"sample_weight": np.ones(12), "class_weight": {0: 1.0}}, "give one of the two"),
        ({"sample_weight": np.ones(3)}, "different lengths"),
        ({"validation_data": dataset()}, r"validation_data \(fit\): expected arrays \(x, y\)"),
    ],
)
def test_arguments(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, DataError), match=told):
        parallax_runner.fit(model(), X, Y, **{"batch_size": 4, **arguments})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"y": Y}, r"y \(fit\): a tf.data.Dataset has it already"),
        ({"batch_size": 4}, r"batch_size \(fit\)"),
        ({"validation_split": 0.5}, r"validation_split=0.5 \(fit\): it goes with arrays"),
        ({"x": dataset().repeat()}, "the data never ends; give the number of steps per epoch"),
        ({"x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(9).batch(6)}, "a shuffle has no seed"),
        ({"class_weight": {1: 2.0}, "x": tf.data.Dataset.from_tensor_slices(X).batch(6)}, r"the data must be \(x, y\)"),
        ({"workers": 4}, "a batch of 6 examples cannot be cut into 4 equal parts"),
    ],
)
def test_arguments_beside_a_dataset(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, DataError), match=told):
        parallax_runner.fit(model(), **{"x": dataset(), **arguments})


GIVEN: dict[str, Any] = {
    **dict.fromkeys(("batch_size", "steps_per_epoch", "validation_data", "class_weight", "sample_weight")),
    **{"validation_split": 0.0, "shuffle": True, "exact": True, "known": {}},
}


def test_the_last_rows_are_held_back_as_keras_does_it() -> None:
    weights = np.arange(12.0)
    found = dataset_of(X, Y, **{**GIVEN, "validation_split": 0.3, "sample_weight": weights, "batch_size": 2})
    assert (found.train_size, found.validation_size) == (8, 4)
    held_back = found.validation_batch(0, 4)
    np.testing.assert_array_equal(held_back["sample_weight"], weights[8:])
    assert any(np.array_equal(array, np.asarray(X)[8:]) for array in held_back.values())
    with pytest.raises(ConfigError, match=r"validation_split=1\.0 \(fit\)"):
        dataset_of(X, Y, **{**GIVEN, "validation_split": 1.0})


def test_what_nobody_can_count_is_not_counted_where_steps_are_given() -> None:
    def numbers() -> Any:
        number = 0
        while True:
            yield [float(number)], [0.0]
            number += 1

    specs = (tf.TensorSpec([1]), tf.TensorSpec([1]))
    endless = tf.data.Dataset.from_generator(numbers, output_signature=specs).batch(6)
    found = dataset_of(endless, None, **{**GIVEN, "steps_per_epoch": 3, "exact": False})
    share = found.share(rank=1, ranks=2, replicas=1)
    (batch,) = (one for position in (0, 6, 12, 18) for one in share.train_batches(position) if position == 18)
    assert [19.0, 21.0, 23.0] in [array.ravel().tolist() for array in batch.values()]

    few = dataset().unbatch().filter(lambda x, y: True).batch(6)
    share = dataset_of(few, None, **{**GIVEN, "steps_per_epoch": 3}).share(rank=0, ranks=1, replicas=1)
    share.train_batches(6)
    with pytest.raises(DataError, match=r"ended before batch 3: .*add \.repeat\(\)"):
        share.train_batches(12)


@pytest.mark.parametrize("validation", [dataset(), (X[:6], Y[:6])], ids=["a dataset", "arrays"])
def test_weights_of_classes_weigh_no_validation_example(validation: Any) -> None:
    found = dataset_of(dataset(), None, **{**GIVEN, "validation_data": validation, "class_weight": {0: 3.0}})
    share = found.share(rank=0, ranks=2, replicas=1)
    assert [batch["sample_weight"].tolist() for batch in share.train_batches(0)] == [[3, 3, 3]]
    assert {tuple(batch["sample_weight"].tolist()) for batch in share.validation_batches(whole_only=True)} == {
        (1, 1, 1)
    }


def test_a_model_that_is_not_compiled() -> None:
    with pytest.raises(ConfigError, match=r"call model\.compile"):
        parallax_runner.fit(model(compiled=False), X, Y)


def test_a_callback_of_batches() -> None:
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=print)
    with pytest.raises(ConfigError, match="overrides on_train_batch_end"):
        parallax_runner.fit(model(), X, Y, batch_size=4, callbacks=[callback])
