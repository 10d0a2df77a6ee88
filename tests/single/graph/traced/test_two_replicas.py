"""What a step writes from its raw gradients, and the same step of two replicas."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.graph.components import type_specs
from parallax_runner.graph.traced import step_graph
from parallax_runner.graph.traced.gradient_uses import uses_of
from parallax_runner.graph.traced.imported import first_of
from parallax_runner.graph.traced.loss_batches import halved
from parallax_runner.graph.traced.loss_graph import terms_of
from parallax_runner.graph.traced.loss_terms import TracedLosses, trace_losses
from parallax_runner.graph.traced.step_graph import StepGraph, merged
from parallax_runner.graph.traced.trace import Steps
from parallax_runner.graph.traced.two_replicas import TwoReplicas
from parallax_runner.graph.traced.variables import Variables

SGD = keras.optimizers.SGD(0.1)
X = np.arange(8.0).reshape(4, 2)


def traces(write: Callable[[Any, Any, Any], None]) -> tuple[TracedLosses, TracedLosses, Any]:
    """Traces a step with a sum for four examples and for two. `write` takes the variable, its gradient and the batch.
    Also returns the initial values."""
    variables = Variables()
    with variables.created():
        weights = tf.Variable(np.array([0.5, 2.0]), name="weights")

    def train(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.linalg.matvec(batch["x"], weights) ** 2)
        write(weights, tape.gradient(loss, weights), batch["x"])
        return loss

    whole, half = (trace_losses(Steps(train), type_specs({"x": ((size, 2), "float64")})) for size in (4, 2))
    variables.note_used([weights])
    return whole, half, [first_of(one) for one in variables.all()]


def by_optimizer(weights: Any, slope: Any, x: Any) -> None:
    SGD.apply([slope], [weights])


def by_hand(weights: Any, slope: Any, x: Any) -> None:
    weights.assign_sub(0.1 * slope)


def in_a_branch(weights: Any, slope: Any, x: Any) -> None:
    tf.cond(slope[0] > 0, lambda: weights.assign_sub(slope), lambda: weights.assign_sub(2 * slope))


def beside(weights: Any, slope: Any, x: Any) -> None:
    """Writes what does not depend on the gradient."""
    weights.assign_sub(tf.reduce_mean(x, axis=0))


@pytest.mark.parametrize(
    ("write", "seen", "unseen"),
    [(by_optimizer, [{-1}], set()), (by_hand, [{-1}], set()), (in_a_branch, [], {-1}), (beside, [], set())],
)
def test_what_a_step_writes(write: Any, seen: list[set[int]], unseen: set[int]) -> None:
    found = uses_of(traces(write)[0])
    assert [targets for _, targets in found.tensors] == seen
    assert found.unseen == unseen


def shown(write: Any, marks: set[int], *, alone: bool = False) -> bool:
    whole, half, firsts = traces(write)
    assert [one.number for one in terms_of(whole)] == [-1]
    graph = StepGraph(whole, half, firsts)
    with closing(graph.session()) as session:
        replicas = TwoReplicas(graph, session, halved({"x": X}, type_specs({"x": ((4, 2), "float64")}), 4))
        values = replicas.total(-1, ())
        assert values.whole == pytest.approx(float(np.sum((X @ [0.5, 2.0]) ** 2)))
        assert values.is_sum(1e-9)
        return replicas.are_equal({-1}, marks, alone=alone)


def divided(weights: Any, slope: Any, x: Any) -> None:
    weights.assign_sub(slope / tf.cast(tf.shape(x)[0], "float64"))


def clipped(weights: Any, slope: Any, x: Any) -> None:
    weights.assign_sub(tf.clip_by_norm(slope, 0.5))


def test_two_replicas_write_what_one_device_writes_only_with_the_right_marks() -> None:
    for write in (by_optimizer, by_hand, clipped):
        assert shown(write, {-1}) and not shown(write, set())
    assert shown(divided, set()) and not shown(divided, {-1})
    assert shown(by_hand, {-1}, alone=True) and not shown(divided, set(), alone=True)


def test_a_step_that_needs_much_memory_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graph, "MOST_BYTES", 15)
    with pytest.raises(ValueError, match=r"needs .* bytes, at most 15 are tried"):
        StepGraph(*traces(by_hand))


def test_rows_of_gradients_are_merged() -> None:
    (dense,) = merged([(np.array([1.0, 2.0]),), (np.array([3.0, 4.0]),)], 0.5)
    np.testing.assert_array_equal(dense, [2.0, 3.0])
    parts = [(np.array([[1.0], [2.0]]), np.array([4, 1])), (np.array([[6.0]]), np.array([4]))]
    values, rows = merged(parts, 0.5)
    np.testing.assert_array_equal(rows, [1, 4])
    np.testing.assert_array_equal(values, [[1.0], [3.5]])
