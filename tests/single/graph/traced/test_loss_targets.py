"""Marks of the targets of tapes, and the gradients that are recorded with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.graph.single_device_graph import DivisorKind
from parallax_runner.graph.traced.loss_divisors import divisors_in
from parallax_runner.graph.traced.loss_targets import RawGradient, TargetNumbers, targets_marked

WEIGHTS = tf.Variable([1.0, 2.0, 3.0], name="weights")
TABLE = tf.Variable(np.arange(8.0).reshape(4, 2), name="table")


def marked(step: Callable[[], Any]) -> tuple[Any, list[int], list[RawGradient]]:
    """Returns the result of a step that is traced with marks, the numbers of the marks, and the raw gradients."""
    raw, terms = list[RawGradient](), list[int]()

    @tf.function
    def traced() -> Any:
        graph = tf.compat.v1.get_default_graph()
        with targets_marked(graph, TargetNumbers(), raw):
            found = step()
        divisors = divisors_in(graph)
        assert all(one.kind == DivisorKind.ONE_IF_SUM for one in divisors)
        terms.extend(one.term for one in divisors)
        return found

    return traced(), terms, raw


@pytest.mark.parametrize("start", [None, [1.0, 0.5, 2.0]])
def test_a_mark_changes_no_gradient(start: Any) -> None:
    def step() -> Any:
        with tf.GradientTape() as tape:
            squares = tf.square(WEIGHTS)
        begin = None if start is None else tf.constant(start)
        return tape.gradient(squares, WEIGHTS, output_gradients=begin)

    found, terms, raw = marked(step)
    np.testing.assert_array_equal(found, step())
    assert terms == [-1]
    assert [(one.targets, one.indices) for one in raw] == [({-1}, None)]


def test_a_gradient_of_two_losses_has_two_marks_and_a_loss_one_number() -> None:
    def step() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            first, second = tf.reduce_sum(tf.square(WEIGHTS)), tf.reduce_sum(tf.exp(WEIGHTS))
        of_both = tape.gradient({"first": first, "second": second}, [WEIGHTS])
        return of_both, tape.gradient(second, WEIGHTS)

    found, terms, raw = marked(step)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(step()), strict=True):
        np.testing.assert_array_equal(one, other)
    assert terms == [-1, -2, -2]
    assert [one.targets for one in raw] == [{-1, -2}, {-2}]


def test_a_sparse_gradient_is_recorded_with_any_number_of_rows() -> None:
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(TABLE, [1, 3, 1]))
        return tape.gradient(loss, TABLE)

    found, _, raw = marked(step)
    np.testing.assert_array_equal(found.indices, [1, 3, 1])
    assert raw[0].values.shape.as_list() == [None, 2]


def test_gradients_of_inputs_and_in_branches_are_left_as_they_are() -> None:
    def step() -> Any:
        x = tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(x))

        def in_branch() -> Any:
            with tf.GradientTape() as inner:
                value = tf.reduce_sum(tf.square(WEIGHTS))
            return inner.gradient(value, WEIGHTS)

        return tape.gradient(loss, x), tf.cond(x[0] > 0, in_branch, lambda: tf.zeros([3]))

    found, terms, raw = marked(step)
    np.testing.assert_array_equal(found[0], [2.0, 4.0])
    np.testing.assert_array_equal(found[1], [2.0, 4.0, 6.0])
    assert terms == [] and raw == []
