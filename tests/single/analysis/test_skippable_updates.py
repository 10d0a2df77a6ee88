"""train.on_nan=skip is refused where an update could not be held back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.skippable_updates import check_skippable_updates
from parallax_runner.errors import PlanError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from tests.single.small_models import FEATURES, Features, captured

Update = Callable[[tf.Variable, tf.Tensor], Any]


def in_branch(variable: tf.Variable, gradient: tf.Tensor) -> Any:
    few = tf.train.get_or_create_global_step() < 10
    return tf.cond(few, lambda: variable.assign_sub(gradient).op, lambda: tf.no_op())


def in_function(variable: tf.Variable, gradient: tf.Tensor) -> Any:
    return tf.function(lambda by: variable.assign_sub(by).read_value(), autograph=False)(gradient)


def outside(variable: tf.Variable, gradient: tf.Tensor) -> Any:
    few = tf.train.get_or_create_global_step() < 10
    return variable.assign_sub(tf.cond(few, lambda: gradient, lambda: 0.1 * gradient))


def updated(by: Update, *, before_loss: bool = False) -> SingleDeviceGraph:
    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [], tf.float64)
        mean = tf.get_variable("mean", [], tf.float64, trainable=False)
        seen = tf.reduce_mean(features["y"])
        with tf.control_dependencies([by(mean, seen)] if before_loss else []):
            loss = tf.square(weights - seen)
        (gradient,) = tf.gradients(loss, weights)
        train_op = outside(weights, gradient) if before_loss else by(weights, gradient)
        return {"loss": loss, "train_op": tf.group(train_op)}

    return capture(build, FEATURES, seed=1)


@pytest.mark.parametrize(("by", "kind"), [(in_branch, "If"), (in_function, "StatefulPartitionedCall")])
def test_an_update_inside_is_refused(by: Update, kind: str) -> None:
    with pytest.raises(PlanError, match=rf"on_nan=skip: «.+» \({kind}\) updates «weights» inside a branch"):
        check_skippable_updates(updated(by))


@pytest.mark.parametrize(
    ("single", "kind"),
    [
        (lambda: updated(outside), "StatelessIf"),  # It chooses the value, and the update is outside.
        (lambda: updated(in_branch, before_loss=True), "If"),  # It updates «mean», which the loss waits for.
        (lambda: captured(optimizer="adam"), "ResourceApplyAdam"),
    ],
)
def test_other_updates_are_not(single: Callable[[], SingleDeviceGraph], kind: str) -> None:
    checked = single()
    assert kind in {node.op for node in checked.meta_graph.graph_def.node}
    check_skippable_updates(checked)
