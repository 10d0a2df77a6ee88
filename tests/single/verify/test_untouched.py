"""The captured graph is compared with the untouched step: equal where the capture is right, and each fault is named."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.graph.components import type_spec
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.graph.traced import gradients
from parallax_runner.graph.traced.capture_step import capture_model, capture_step
from parallax_runner.graph.traced.row_updates import SparseUpdates
from parallax_runner.graph.traced.untouched import Untouched, untouched_model, untouched_step
from parallax_runner.train.feed import Feed
from parallax_runner.verify.untouched import UntouchedComparison, compare_with_untouched
from tests.single.graph.traced import test_ragged_steps

BATCH, ROWS, STEPS = 4, 20, 4
FEATURES = {"ids": ((BATCH, 3), "int32"), "x": ((BATCH, 3), "float32"), "y": ((BATCH,), "float32")}
LABELS = {"labels": "y"}


def batches() -> Iterator[dict[str, np.ndarray]]:
    """Most batches have an id more than once."""
    for step in range(STEPS):
        draw = np.random.default_rng(step)
        yield {
            "ids": draw.integers(0, ROWS, (BATCH, 3)).astype("int32"),
            "x": draw.normal(size=(BATCH, 3)).astype("float32"),
            "y": draw.normal(size=BATCH).astype("float32"),
        }


class OwnStep(keras.Model):
    """Trains with its own step, which is a compiled function and adds to a variable."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="seen")

    @tf.function
    def train_step(self, data: Any) -> dict[str, Any]:
        """Adam is not linear in the gradient, so merging matters."""
        x, y = keras.utils.unpack_x_y_sample_weight(data)[:2]
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.seen.assign_add(1)
        return {"loss": loss}


def model(kind: type[keras.Model] = keras.Model) -> Any:
    """An embedding, batch statistics and draws, trained by Adam."""
    ids, x = keras.Input((3,), dtype="int32", name="ids"), keras.Input((3,), name="x")
    rows = keras.layers.Flatten()(keras.layers.Embedding(ROWS, 2, name="table")(ids))
    hidden = keras.layers.Dense(4, activation="tanh", name="hidden")(keras.layers.Concatenate()([rows, x]))
    hidden = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization(name="norm")(hidden))
    made = kind([ids, x], keras.layers.Dense(1, name="out")(hidden))
    made.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return made


def step_with_a_tape() -> Any:
    """A compiled function with a loop, rows that are updated by hand, and a layer that is made in the first call."""
    table = tf.Variable(tf.random.stateless_normal([ROWS, 3], [1, 2]), name="table")
    dense, mean = keras.layers.Dense(1, name="dense"), keras.metrics.Mean(name="mean")

    @tf.function(jit_compile=True)
    def forward(rows: Any) -> Any:
        for _ in tf.range(2):
            rows = tf.tanh(rows)
        return rows

    @tf.function
    def step(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            rows = forward(tf.reduce_sum(tf.gather(table, batch["ids"]), axis=1) * batch["x"])
            loss = tf.reduce_mean(tf.square(dense(rows)[:, 0] - batch["y"]))
        rows, kernel = tape.gradient(loss, [table, dense.kernel])
        table.scatter_sub(tf.IndexedSlices(0.1 * rows.values**3, rows.indices))  # not linear, so merging matters
        dense.kernel.assign_sub(0.1 * kernel)
        mean.update_state(loss)
        return loss

    return step


def evaluated(batch: dict[str, Any]) -> Any:
    """The second function of a pair."""
    return tf.reduce_mean(batch["y"])


def compared(make: Callable[[], Any], options: Mapping[str, Any], single: SingleDeviceGraph) -> UntouchedComparison:
    return compare_with_untouched(single, untouched_step(make, FEATURES, seed=7, options=options), batches())


def capture(make: Callable[[], Any], options: Mapping[str, Any]) -> SingleDeviceGraph:
    return capture_step(make, FEATURES, seed=7, options=options)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (model, LABELS),
        (lambda: model(OwnStep), LABELS),
        (step_with_a_tape, {}),
        (lambda: (step_with_a_tape(), evaluated), {}),
    ],
    ids=["keras", "own_step", "tape", "pair"],
)
def test_a_right_capture_is_equal(make: Callable[[], Any], options: Mapping[str, Any]) -> None:
    single = capture(make, options)
    found = compared(make, options, single)
    assert found.left_out is None and not found.differs and found.steps == STEPS
    assert found.comparison is not None
    assert [each.name for each in found.comparison.variables] == [each.name for each in single.variables]
    assert found.comparison.max_relative < 1e-5


def test_ragged_and_sparse_features_are_put_together() -> None:
    data = TfDataset.of(test_ragged_steps.dataset())
    features = {name: type_spec(feature, 2) for name, feature in data.features.items()}
    make, feed = test_ragged_steps.model, Feed(data, 2, 0, 2)
    single = capture_step(make, features, seed=7, options=LABELS)
    given = (feed.train_batches(step * 4)[0] for step in range(3))
    found = compare_with_untouched(single, untouched_step(make, features, seed=7, options=LABELS), given)
    assert found.left_out is None and not found.differs and found.steps == 3


def edited(single: SingleDeviceGraph, change: Callable[[tf.compat.v1.GraphDef], None]) -> SingleDeviceGraph:
    """The same graph after a change."""
    meta_graph = type(single.meta_graph)()
    meta_graph.CopyFrom(single.meta_graph)
    change(meta_graph.graph_def)
    return dataclasses.replace(single, meta_graph=meta_graph)


def writes_of(graph_def: Any, variable: str) -> list[Any]:
    return [
        node
        for node in graph_def.node
        if node.name.startswith("step/") and node.op.startswith("Assign") and node.input[0] == variable
    ]


def scaled(variable: str) -> Callable[[Any], None]:
    """An assigned value is a hundredth too large."""

    def change(graph_def: Any) -> None:
        (write,) = writes_of(graph_def, variable)
        dtype = write.attr["dtype"].type
        factor = graph_def.node.add(name="fault/factor", op="Const")
        factor.attr["dtype"].type = dtype
        factor.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.01, dtype))
        product = graph_def.node.add(name="fault/product", op="Mul", input=[write.input[1], factor.name])
        product.attr["T"].type = dtype
        write.input[1] = product.name

    return change


def dropped(variable: str) -> Callable[[Any], None]:
    """An assignment does nothing."""

    def change(graph_def: Any) -> None:
        (write,) = writes_of(graph_def, variable)
        write.op = "NoOp"
        write.input[:] = [name for name in write.input if name.startswith("^")]
        write.attr.clear()

    return change


@pytest.mark.parametrize(
    ("change", "variable", "first"),
    [
        (scaled("hidden/bias"), "hidden/bias", "hidden/bias"),
        (scaled("adam/table_embeddings_velocity"), "adam/table_embeddings_velocity", "table/embeddings"),
        (dropped("adam/iteration"), "adam/iteration", "adam/iteration"),
        (dropped("norm/moving_mean"), "norm/moving_mean", "norm/moving_mean"),
        (dropped("seed_generator/seed_generator_state"), *2 * ("seed_generator/seed_generator_state",)),
    ],
    ids=["weight", "slot", "counter", "statistic", "seed"],
)
def test_a_changed_update_is_named(change: Callable[[Any], None], variable: str, first: str) -> None:
    """A weight that its changed slot has updated comes first."""
    single = capture(model, LABELS)
    found = compared(model, LABELS, edited(single, change))
    assert found.differs and found.steps == 1
    assert found.comparison is not None and found.comparison.first_difference is not None
    assert found.comparison.first_difference.name == first
    assert {one.name for one in found.comparison.variables if not one.equal} == {first, variable}


def test_a_fault_of_the_capture_is_named() -> None:
    """The capture doubles dense gradients."""
    noted = gradients._noted

    def doubled(*args: Any) -> Any:
        gradient = noted(*args)
        return gradient if isinstance(gradient, tf.IndexedSlices) else 2.0 * gradient

    with mock.patch.object(gradients, "_noted", doubled):
        single = capture(step_with_a_tape, {})
    found = compared(step_with_a_tape, {}, single)
    assert found.differs and found.steps == 1
    assert found.comparison is not None
    assert str(found.comparison.first_difference).startswith("dense/kernel: differs by ")


def test_a_read_that_moved_before_a_write_is_named() -> None:
    """A branch doubles a variable every second step, and the graph reads it before that."""

    def make() -> Any:
        weights, doubled = tf.Variable([1.0, 2.0, 3.0], name="weights"), tf.Variable(tf.ones(3), name="doubled")
        count = tf.Variable(0, trainable=False, name="count")

        @tf.function
        def step(batch: dict[str, Any]) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(batch["x"] * weights))
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            count.assign_add(1)
            doubled.assign(tf.where(count % 2 == 0, 2 * weights, doubled))
            return loss

        return step

    def change(graph_def: Any) -> None:
        (write,) = writes_of(graph_def, "doubled")
        nodes = {node.name: node for node in graph_def.node}
        (update,) = writes_of(graph_def, "weights")
        for node in nodes.values():
            if node.op == "ReadVariableOp":
                node.input[:] = [name for name in node.input if name != f"^{update.name}"]
        update.input.append(f"^{write.name}")

    found = compared(make, {}, edited(capture(make, {}), change))
    assert found.differs and found.steps == 2
    assert found.comparison is not None and found.comparison.first_difference is not None
    assert found.comparison.first_difference.name == "doubled"


class Given:
    """A model that a script has built and trained, as `fit` gets it."""

    def __init__(self) -> None:
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        self.model = model(OwnStep)
        self.batch = next(batches())
        self.model.train_step(self.as_batch({name: tf.constant(one) for name, one in self.batch.items()}))

    @property
    def specs(self) -> dict[str, Any]:
        return {name: tf.TensorSpec(*one) for name, one in FEATURES.items()}

    def as_batch(self, features: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        return [features["ids"], features["x"]], features["y"], None

    def capture(self) -> SingleDeviceGraph:
        return capture_model(self.model, self.specs, self.as_batch, seed=7, sparse_updates=SparseUpdates.EXACT)

    def untouched(self) -> AbstractContextManager[Untouched]:
        return untouched_model(self.model, self.specs, self.as_batch)

    def values(self) -> dict[str, np.ndarray]:
        return {one.path: np.array(one.numpy()) for one in (*self.model.variables, *self.model.optimizer.variables)}


def test_a_model_of_fit_keeps_its_values_and_its_compiled_step() -> None:
    """The step was traced before with gradients that are not merged, and afterwards it is the same function."""
    given = Given()
    before, traced = given.values(), given.model.train_step._variable_creation_config
    single = given.capture()
    found = compare_with_untouched(single, given.untouched(), batches())
    assert found.left_out is None and not found.differs and found.steps == STEPS
    assert given.model.train_step._variable_creation_config is traced
    for name, value in given.values().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_a_graph_that_begins_with_other_values_than_a_model_is_refused() -> None:
    given = Given()
    single = given.capture()
    given.model.get_layer("hidden").bias.assign(tf.ones(4))
    bias = given.model.get_layer("hidden").bias.path

    def change(graph_def: Any) -> None:
        (value,) = [node for node in graph_def.node if node.name.startswith(f"{bias}/initial_value/Const")]
        value.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.full(4, 3.0, "float32")))

    found = compare_with_untouched(edited(single, change), given.untouched(), batches())
    assert found.differs and found.steps == 0
    assert found.comparison is not None and found.comparison.first_difference is not None
    assert found.comparison.first_difference.name == bias


def failing() -> Any:
    """A step that works only while it is traced."""
    weights = tf.Variable(tf.ones(3), name="weights")

    def step(batch: dict[str, Any]) -> Any:
        if tf.executing_eagerly():
            raise ValueError("not\nhere")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch["x"] * weights)
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    return step


def drawing() -> Any:
    """A step with noise from TensorFlow's own stream, in a branch."""
    weights = tf.Variable(tf.ones(3), name="weights")

    @tf.function
    def step(batch: dict[str, Any]) -> Any:
        noise = tf.cond(batch["y"][0] > 0, lambda: tf.random.normal([3]), lambda: tf.zeros(3))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch["x"] * (weights + noise) ** 2)
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    return step


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (drawing, r"«.*» \(RandomStandardNormal\) draws other numbers in a graph than in eager execution"),
        (failing, r"the step fails in plain TensorFlow: ValueError: not here$"),
    ],
)
def test_what_cannot_be_compared_is_told(make: Callable[[], Any], told: str) -> None:
    found = compared(make, {}, capture(make, {}))
    assert found.comparison is None and not found.differs
    assert found.left_out is not None and re.search(told, found.left_out)


def test_a_function_that_makes_other_variables_when_called_again_is_told() -> None:
    names = iter(("first", "second"))

    def make() -> Any:
        weights = tf.Variable(tf.ones(3), name=next(names))

        def step(batch: dict[str, Any]) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(batch["x"] * weights)
            weights.assign_sub(tape.gradient(loss, weights))
            return loss

        return step

    found = compared(make, {}, capture(make, {}))
    assert found.left_out == (
        "the model's function created other variables when it was called again: missing ['first'], "
        "unexpected ['second']"
    )
