"""Which op keeps a variable with the ranks, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from tests.single.small_models import BATCH, ROWS, WIDTH, Features, captured, infos, planned

FEATURES = {"ids": ((BATCH,), "int32"), "y": ((BATCH,), "float32")}
V1 = tf.train


def gather_nd_model(features: Features) -> tf.Tensor:
    table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
    return tf.reduce_sum(tf.gather_nd(table, features["ids"][:, None]), axis=1)


def branch_model(features: Features) -> tf.Tensor:
    table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
    rows = tf2.function(lambda ids: tf.gather(table, ids), autograph=False)(features["ids"])
    return tf.reduce_sum(rows, axis=1)


def stepping(optimizer: Callable[[], Any], *, loss_is_late: bool) -> SingleDeviceGraph:
    """A step that returns its loss from before its update, or computes it again after it."""

    def make() -> Any:
        table, chosen = tf2.Variable(tf.ones([ROWS, WIDTH]), name="table"), optimizer()

        def loss_of(batch: Features) -> tf.Tensor:
            rows = tf.nn.embedding_lookup(table, batch["ids"])
            return tf.reduce_mean(tf.square(tf.reduce_sum(rows, -1) - batch["y"]))

        def step(batch: Features) -> tf.Tensor:
            with tf2.GradientTape() as tape:
                loss = loss_of(batch)
            chosen.apply_gradients([(tape.gradient(loss, table), table)])
            return loss_of(batch) if loss_is_late else loss

        return step

    return capture_step(make, FEATURES, seed=1, options={})


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (gather_nd_model, r"looks up rows with tf\.gather_nd; use tf\.gather or tf\.nn\.embedding_lookup"),
        (branch_model, "uses it in a branch, a loop or a function"),
    ],
)
def test_the_reason_is_that_of_the_op(model: Callable[[Features], tf.Tensor], why: str) -> None:
    with pytest.raises(PlanError, match=rf"«table» cannot be on a server, because «\S+» {why}"):
        planned(captured(model), "ps")


@pytest.mark.parametrize("optimizer", [lambda: V1.GradientDescentOptimizer(0.1), lambda: V1.AdamOptimizer(0.1)])
def test_a_loss_that_waits_for_the_update_keeps_the_variable_with_the_ranks(optimizer: Callable[[], Any]) -> None:
    """The worker would run the update itself, on a variable that it does not have."""
    late = stepping(optimizer, loss_is_late=True)
    with pytest.raises(
        PlanError, match="writes it before the loss or a metric is computed; compute these from the val"
    ):
        planned(late, "ps")
    (table,) = [one for one in planned(late, "hybrid").variables if one.name == "table"]
    assert table.route != "ps"
    assert infos(stepping(optimizer, loss_is_late=False))["table"].immovable_op is None
