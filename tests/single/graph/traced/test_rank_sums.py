"""Which sums over the replicas are marked, and that a mark changes nothing on one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from parallax_runner.graph.single_device_graph import RankSum
from parallax_runner.graph.traced.gradients import TapeGradient
from parallax_runner.graph.traced.rank_sums import rank_sums_in, rank_sums_marked


def summed(value: Any, reduction: tf.distribute.ReduceOp = tf.distribute.ReduceOp.SUM) -> Any:
    return tf.distribute.get_replica_context().all_reduce(reduction, value)


def test_a_sum_and_its_gradient_are_marked_in_their_order() -> None:
    with tf.Graph().as_default() as graph, rank_sums_marked(graph, []):
        value = tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = tf.reduce_sum(tf.square(summed(value * 3)))
        gradient = tape.gradient(loss, value)
        with tf.compat.v1.Session(graph=graph) as session:
            found = session.run([loss, gradient])
    np.testing.assert_allclose(found[0], 45)
    np.testing.assert_allclose(found[1], [18, 36])
    first, second = rank_sums_in(graph)
    assert (first.is_gradient, second.is_gradient) == (False, True)


def test_several_values_of_one_call_are_marked() -> None:
    with tf.Graph().as_default() as graph, rank_sums_marked(graph, []):
        summed({"a": tf.constant(1.0), "b": tf.constant(2.0)})
    assert [one.is_gradient for one in rank_sums_in(graph)] == [False, False]


def test_gradients_slices_means_and_branches_are_left_as_they_are() -> None:
    with tf.Graph().as_default() as graph:
        gradient = tf.constant([1.0])
        with rank_sums_marked(graph, [TapeGradient(1, gradient, None)]):
            summed(gradient * 2)
            summed(tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([0])))
            summed(tf.constant(1.0), tf.distribute.ReduceOp.MEAN)
            tf.cond(tf.constant(True), lambda: summed(tf.constant(1.0)), lambda: tf.constant(1.0))
    assert rank_sums_in(graph) == ()


def test_outside_of_the_block_nothing_is_marked() -> None:
    with tf.Graph().as_default() as graph:
        with rank_sums_marked(graph, []):
            summed(tf.constant(1.0))
        summed(tf.constant(1.0))
    (one,) = rank_sums_in(graph)
    assert isinstance(one, RankSum)
