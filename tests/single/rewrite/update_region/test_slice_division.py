"""Slices that Keras divides by a tensor of all rows: on each shard for itself, also where some rows divide by zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.branches import IF_TYPES
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from tests.keras_updates import Update, divided
from tests.single.rewrite.one_device import OneDevice, Values, assert_same, batch, graph_of
from tests.single.small_models import FEATURES, Features, lookup_model

Divide = Callable[[tf.IndexedSlices, tf.Tensor], tf.IndexedSlices]
IDS = np.array([1, 1, 4, 5])


def quotients(divide: Divide = divided) -> SingleDeviceGraph:
    """A slot adds up the table's gradient divided by the root of the sum of its squares: zero in rows not yet seen."""

    def build(features: Features) -> dict[str, Any]:
        loss = tf.reduce_mean(tf.square(lookup_model(features) - features["y"]))
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        (gradient, table), weights = optimizer.compute_gradients(loss)
        update = Update("noting", table, gradient.op)
        squares = update.slot("squares")
        update.assign_add(squares, tf.IndexedSlices(gradient.values**2, gradient.indices, gradient.dense_shape))
        update.assign_add(update.slot("quotient"), divide(gradient, tf.sqrt(update.read(squares))))
        return {"loss": loss, "train_op": tf.group(*update.writes, optimizer.apply_gradients([weights]))}

    return capture(build, FEATURES, seed=1)


def after_steps(device: OneDevice) -> Values:
    device.initialize()
    device.step([batch(0) | {"ids": IDS}])
    return device.variables()


def whole_on_worker(device: OneDevice) -> list[str]:
    """What the chief brings together from servers."""
    step = edit.ancestors([device.there(0, device.ranks[0].train_op)])
    return [op.name for op in step if op.name.startswith("from_servers")]


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_rows_that_divide_by_zero_are_those_of_one_device(partitions: int) -> None:
    """Of four shards one has no such row."""
    single = quotients()
    expected = after_steps(graph_of(single, "local"))
    is_nan = np.isnan(expected["noting/table_quotient"]).any(axis=1)
    assert is_nan.tolist() == [True, False, True, True, False, False]
    device = graph_of(single, "ps", partitions=partitions)
    assert_same(after_steps(device), expected, 1e-12)
    assert whole_on_worker(device) == []


def other_quotient(gradient: tf.IndexedSlices, divisor: tf.Tensor) -> tf.IndexedSlices:
    """By a branch of which nothing is known."""
    rows, ids, shape = tf.cond(
        tf.reduce_any(tf.reduce_any(tf.equal(divisor, 0.0), axis=1)),
        lambda: (gradient.values * tf.reduce_sum(divisor), gradient.indices, gradient.dense_shape),
        lambda: (gradient.values / tf.gather(divisor, gradient.indices), gradient.indices, gradient.dense_shape),
    )
    return tf.IndexedSlices(rows, ids, shape)


def test_another_branch_gets_what_it_reads_brought_together() -> None:
    single = quotients(other_quotient)
    device = graph_of(single, "ps", partitions=4)
    assert [op for op in device.graph.get_operations() if op.type in IF_TYPES]
    assert whole_on_worker(device) != []
    assert_same(after_steps(device), after_steps(graph_of(single, "local")), 1e-12)
