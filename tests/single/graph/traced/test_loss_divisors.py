"""Which divisors of losses are marked, and that a mark changes nothing on one device."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from parallax_runner.graph.single_device_graph import Divisor, DivisorKind
from parallax_runner.graph.traced import loss_divisors
from parallax_runner.graph.traced.loss_divisors import divisors_in, divisors_marked, with_sums

Y = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float32")
MASK = np.array([[True, False, True], [False, False, True]])
WEIGHTS = np.array([[1.0, 2.0, 0.5], [3.0, 1.0, 1.0]], "float32")
COUNT, ONE, ONE_IF_SUM = DivisorKind.COUNT, DivisorKind.ONE, DivisorKind.ONE_IF_SUM


class EachNumber(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(y_pred - y_true)


def evaluated(loss: Any, predicted: Any, mask: Any, weights: Any) -> tuple[Any, Any]:
    """Returns the loss and its gradient."""
    predicted = tf.convert_to_tensor(predicted)
    if mask is not None:
        keras.src.backend.set_keras_mask(predicted, tf.constant(mask))
    with tf.GradientTape() as tape:
        tape.watch(predicted)
        value = loss(tf.constant(Y), predicted, weights)
    return value, tape.gradient(value, predicted)


CASES = {
    "a mean": ("sum_over_batch_size", False, False, []),
    "a weighted mean": ("sum_over_batch_size", False, True, []),
    "a masked mean": ("sum_over_batch_size", True, False, [COUNT]),
    "a masked and weighted mean": ("mean", True, True, [COUNT]),
    "a sum": ("sum", False, False, [ONE]),
    "a masked sum": ("sum", True, True, [ONE]),
    "no reduction": (None, False, True, [ONE]),
    "a mean of weights": ("mean_with_sample_weight", False, True, [COUNT]),
    "a mean of weights without weights": ("mean_with_sample_weight", False, False, []),
    "a mean of masked weights": ("mean_with_sample_weight", True, True, [COUNT]),
}


@pytest.mark.parametrize(("reduction", "is_masked", "is_weighted", "kinds"), CASES.values(), ids=list(CASES))
def test_a_marked_loss_is_keras_loss(
    reduction: str | None, is_masked: bool, is_weighted: bool, kinds: list[DivisorKind]
) -> None:
    loss = EachNumber(reduction=reduction)
    given = (Y * 0.5 - 1, MASK if is_masked else None, WEIGHTS if is_weighted else None)
    expected = evaluated(loss, *given)
    with tf.Graph().as_default() as graph:
        with divisors_marked(graph):
            found = evaluated(loss, *given)
        with tf.compat.v1.Session(graph=graph) as session:
            values = session.run(found)
    for one, other in zip(values, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert [one.kind for one in divisors_in(graph)] == kinds


def test_losses_are_numbered_in_order_and_a_trial_decides_about_single_numbers() -> None:
    def summed(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.sum(y_true - y_pred)

    with tf.Graph().as_default() as graph, divisors_marked(graph):
        layers.Layer().add_loss(tf.constant(3.0))
        EachNumber(reduction="sum")(Y, Y)
        keras.losses.get(summed)  # no loss object, so it is not called through Keras' reduction
        loss = type("Summed", (keras.losses.Loss,), {"call": lambda self, y_true, y_pred: summed(y_true, y_pred)})()
        loss(Y, Y)
    found = divisors_in(graph)
    assert [(one.kind, one.term) for one in found] == [(ONE_IF_SUM, 0), (ONE, 1), (ONE_IF_SUM, 2)]
    assert [(one.kind, one.term) for one in with_sums(found, {2})] == [(ONE, 1), (ONE, 2)]
    assert with_sums([Divisor("a:0", COUNT, 0)], set()) == (Divisor("a:0", COUNT, 0),)


def test_a_loss_in_a_branch_is_left_as_it_is() -> None:
    with tf.Graph().as_default() as graph, divisors_marked(graph):
        tf.cond(tf.constant(True), lambda: EachNumber(reduction="sum")(Y, Y), lambda: tf.constant(0.0))
    assert divisors_in(graph) == ()


def test_what_depends_on_variables_or_draws_is_left_out_but_not_what_has_their_shape() -> None:
    with tf.Graph().as_default() as graph:
        variable = tf.compat.v1.get_variable("weights", [3], use_resource=True)
        for value in (tf.reduce_sum(variable), tf.random.uniform([])):
            loss_divisors.mark(value, COUNT, 0)
        kept = loss_divisors.mark(tf.cast(tf.size(variable + tf.zeros([2, 3])), tf.float32), COUNT, 0)
    assert [one.tensor for one in divisors_in(graph)] == [kept.name]
