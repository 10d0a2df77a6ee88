"""Which rows an update writes, and which ops need all rows of a table: as the plan says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan import plan as plans
from tests import keras_updates
from tests.single.small_models import (
    FEATURES,
    OPTIMIZERS,
    ROWS,
    WIDTH,
    Features,
    captured,
    infos,
    lookup_model,
    planned,
)

TABLE_BYTES = ROWS * WIDTH * 8
TOUCHED = {"gradient_descent", "momentum", "adagrad", "rmsprop", "ftrl"}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_of_tensorflow_1(optimizer: str) -> None:
    found = infos(captured(optimizer=optimizer))
    assert found["table"].rows_written == ("touched" if optimizer in TOUCHED else "all")
    assert found["weights"].rows_written == "all"
    assert found["global_step"].rows_written == ""
    assert all(info.whole_tables == () for info in found.values())


def made_by(train_op: Callable[[list[Any]], Any]) -> SingleDeviceGraph:
    def build(features: Features) -> dict[str, Any]:
        loss = tf.reduce_mean(tf.square(lookup_model(features) - features["y"]))
        pairs = tf.train.GradientDescentOptimizer(0.1).compute_gradients(loss)
        return {"loss": loss, "train_op": train_op(pairs)}

    return capture(build, FEATURES, seed=1)


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("optimizer", keras_updates.OPTIMIZERS)
def test_updates_as_keras_writes_them(optimizer: str, averages: bool) -> None:
    def train_op(pairs: list[Any]) -> tf.Operation:
        chosen = keras_updates.Optimizer(optimizer, averages=averages)
        return chosen.apply_gradients(pairs, tf.train.get_or_create_global_step())

    table = infos(made_by(train_op))["table"]
    assert table.rows_written == ("touched" if optimizer in ("sgd", "adagrad") and not averages else "all")
    assert table.whole_tables == ()


def test_an_update_by_other_ids_or_in_a_branch_writes_any_row() -> None:
    def by_constants(pairs: list[Any]) -> tf.Operation:
        step = tf.train.GradientDescentOptimizer(0.1).apply_gradients(pairs)
        with tf.control_dependencies([step]):
            return tf.scatter_update(pairs[0][1], [0], tf.zeros([1, WIDTH], tf.float64)).op

    def in_a_branch(pairs: list[Any]) -> tf.Operation:
        due = tf.equal(tf.train.get_or_create_global_step(), 0)
        return tf.cond(due, lambda: tf.train.GradientDescentOptimizer(0.1).apply_gradients(pairs), tf.no_op)

    for train_op in (by_constants, in_a_branch):
        assert infos(made_by(train_op))["table"].rows_written == "all"


def by_largest(pairs: list[Any]) -> tf.Operation:
    """The largest element of a table cannot be found in parts."""
    (gradient, table), weights = pairs
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    with tf.control_dependencies([gradient.op]):
        scale = tf.reduce_max(tf.abs(table.read_value()), name="largest")
    scaled = tf.IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_shape)
    return optimizer.apply_gradients([(scaled, table), weights])


@pytest.mark.parametrize(("comm", "is_said"), [("ps", True), ("hybrid", True), ("sharded", True), ("mpi", False)])
def test_an_op_that_needs_a_whole_table_is_named_with_its_bytes(comm: str, is_said: bool) -> None:
    plan = planned(made_by(by_largest), comm)
    table = next(variable for variable in plan.variables if variable.name == "table")
    expected = (plans.WholeTable("largest", TABLE_BYTES),) if is_said else ()
    assert table.whole_tables == expected
    said = f"all rows of «table» are sent for op «largest»: {TABLE_BYTES} bytes per step"
    assert (said in plan.notes) == is_said
    assert plans.of_json(plans.to_json(plan)) == plan


def test_a_table_that_is_read_whole_beside_the_update_is_named() -> None:
    def build(features: Features) -> dict[str, Any]:
        rows = lookup_model(features)
        (table,) = (each for each in tf.trainable_variables() if each.op.name == "table")
        regular = tf.stop_gradient(
            tf.reduce_mean(tf.raw_ops.ReadVariableOp(resource=table.handle, dtype=tf.float64, name="read_all"))
        )
        loss = tf.reduce_mean(tf.square(rows - features["y"])) + regular
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}

    found = infos(capture(build, FEATURES, seed=1))["table"]
    assert [(one.op, one.size_bytes) for one in found.whole_tables] == [("read_all", TABLE_BYTES)]
