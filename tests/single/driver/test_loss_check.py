"""When the losses of a model are tried before the first step."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver import loss_check
from parallax_runner.graph.single_device_graph import DivisorKind, SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.shipment import stored_values
from tests.single.small_models import captured

BATCH = 3


class Data:
    """Counts the examples that are read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        assert start == 0
        self.read.append(size)
        return {"x": np.linspace(0, 1, 2 * size).reshape(size, 2), "y": np.linspace(1, 2, size)}


FEATURES = {"x": ((BATCH, 2), "float32"), "y": ((BATCH,), "float32")}


class OwnStep(keras.Model):
    """A model whose own training step sums up the errors."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(self(x, training=True)[:, 0] - y))
        slopes = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(slopes, self.trainable_variables, strict=True))
        return {"loss": loss}


class AddsSum(keras.layers.Layer):
    """Adds the sum of its inputs to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.sum(x))
        return x


def summing_step() -> SingleDeviceGraph:
    def make() -> Any:
        x = keras.Input([2])
        model = OwnStep(x, keras.layers.Dense(1)(x))
        model.compile("sgd", "mse")
        return model

    return capture_step(make, FEATURES, seed=1, options={"labels": "y"})


def with_loss(loss: Any, *, added: bool = False) -> SingleDeviceGraph:
    """The graph of a model that Keras trains, with a loss of a layer if `added`."""

    def make() -> Any:
        model = keras.Sequential([*([AddsSum()] if added else []), keras.layers.Dense(1)])
        model.compile("sgd", loss)
        return model

    return capture_step(make, FEATURES, seed=1, options={"labels": "y"})


@pytest.fixture(scope="module")
def own() -> SingleDeviceGraph:
    return summing_step()


@pytest.fixture(scope="module")
def summing() -> SingleDeviceGraph:
    """A model that Keras trains with the sum of a loss."""
    return with_loss(keras.losses.MeanSquaredError(reduction="sum"))


def config(workers: int = 2, comm: str = "mpi", *, sync: bool = True, backup_workers: int = 0) -> RunConfig:
    given = {
        "data": {"batch_size": BATCH},
        "comm": {"name": comm, "sync": sync, "ps": {"backup_workers": backup_workers}},
        "cluster": {"workers": workers, "replicas_per_worker": 1},
    }
    return from_plain(given)


def notes(single: SingleDeviceGraph, given: RunConfig, data: Any) -> tuple[str, ...]:
    return loss_check.checked(given, single, data)[1]


def test_the_gradients_of_an_own_step_with_a_sum_are_summed(own: SingleDeviceGraph) -> None:
    for workers, read in ((2, 6), (3, 8), (100, 8)):
        data = Data()
        single, (note,) = loss_check.checked(config(workers), own, data)
        assert f"the sum of the gradients of its {workers} replicas" in note
        assert [one.kind for one in single.divisors] == [DivisorKind.ONE]
        assert data.read == [read]


def test_a_sum_of_an_own_step_has_a_note_where_nothing_is_replaced(
    own: SingleDeviceGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    (note,) = notes(own, config(3, "ps", backup_workers=1), Data())
    assert "are 2 times smaller than on one device" in note
    monkeypatch.setattr(stored_values, "python_op", lambda single: "PyFunc")  # so each worker builds the graph again
    single, (note,) = loss_check.checked(config(), own, Data())
    assert "are 2 times smaller than on one device" in note
    assert single.divisors == ()


def test_a_sum_that_keras_trains_needs_no_note(summing: SingleDeviceGraph) -> None:
    single, told = loss_check.checked(config(), summing, Data())
    assert told == ()
    assert [one.kind for one in single.divisors] == [DivisorKind.ONE]


def test_a_trial_decides_about_the_loss_of_a_layer() -> None:
    captured_model = with_loss("mse", added=True)
    assert [one.kind for one in captured_model.divisors] == [DivisorKind.ONE_IF_SUM]
    single, told = loss_check.checked(config(), captured_model, Data())
    assert told == ()
    assert [one.kind for one in single.divisors] == [DivisorKind.ONE]


def test_with_backup_workers_a_sum_is_not_exact(summing: SingleDeviceGraph) -> None:
    (note,) = notes(summing, config(3, "ps", backup_workers=1), Data())
    assert "are 2 times smaller than on one device" in note


def test_one_replica_steps_without_an_average_and_graphs_are_not_tried(own: SingleDeviceGraph) -> None:
    data = Data()
    assert notes(own, config(1, "local"), data) == ()
    assert notes(own, config(2, "ps", sync=False), data) == ()
    assert notes(captured(), config(), data) == ()
    assert data.read == []


def test_data_that_cannot_be_read_leave_what_the_model_says(summing: SingleDeviceGraph) -> None:
    class Broken:
        def train_batch(self, start: int, size: int) -> Any:
            raise OSError("gone")

    assert notes(dataclasses.replace(summing), config(), Broken()) == ()
    (note,) = notes(dataclasses.replace(summing), config(3, "ps", backup_workers=1), Broken())
    assert "is a sum over examples. A step" in note
