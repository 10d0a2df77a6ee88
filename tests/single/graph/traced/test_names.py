"""Names that a step's variables and features may have, although the captured graph uses them or refuses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.graph.traced.capture_step import capture_step
from tests.single.rewrite.one_device import graph_of

BATCH, ROWS = 4, 6


def maker(ids: str = "ids", y: str = "y", counter: str = "count") -> Callable[[], Any]:
    def make() -> Any:
        table, count = tf.Variable(tf.ones([ROWS, 2]), name="table"), tf.Variable(0, trainable=False, name=counter)

        def step(batch: dict[str, Any]) -> Any:
            with tf.GradientTape() as tape:
                rows = tf.gather(table, tf.cast(batch[ids], tf.int32))
                loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, -1) - batch[y]))
            table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))
            count.assign_add(1)
            return loss

        return step

    return make


def losses(make: Callable[[], Any], ids: str = "ids", y: str = "y", dtype: str = "int32") -> list[float]:
    single = capture_step(make, {ids: ((BATCH,), dtype), y: ((BATCH,), "float32")}, seed=7, options={})
    device = graph_of(single, "local")
    device.initialize()
    values = {ids: np.array([0, 1, 1, 5], dtype), y: np.arange(BATCH, dtype=np.float32)}
    return [device.step([values])[0] for _ in range(2)]


@pytest.mark.parametrize("counter", ["step", "train_op", "loss", "features", "evaluation", "metrics"])
def test_a_counter_with_the_name_of_a_part_of_the_graph(counter: str) -> None:
    """The ops of the imported step then have other names."""
    assert losses(maker(counter=counter)) == losses(maker())


@pytest.mark.parametrize(("ids", "y"), [("user id", "préis:€/x"), ("a b", "a:b"), ("1", "")])
def test_features_with_signs_that_op_names_lack(ids: str, y: str) -> None:
    assert losses(maker(ids, y), ids, y) == losses(maker())


@pytest.mark.parametrize("dtype", ["int16", "uint8", "int64"])
def test_ids_of_other_integer_types(dtype: str) -> None:
    assert losses(maker(), dtype=dtype) == losses(maker())
