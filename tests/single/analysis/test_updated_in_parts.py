"""Which dense variables can be cut: their update runs on each shard of their rows alone."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.capture import capture
from tests.single.small_models import FEATURES, OPTIMIZERS, Features, captured, clip, infos


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("process", [list, clip])
def test_optimizers_work_element_by_element_and_a_norm_is_a_sum_of_parts(optimizer: str, process: Any) -> None:
    found = infos(captured(optimizer=optimizer, process=process))
    assert {name for name, one in found.items() if one.is_updated_in_parts} == {"weights"}


def test_an_update_that_mixes_rows_needs_all_of_them() -> None:
    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [4, 4], tf.float64)
        loss = tf.reduce_sum(tf.matmul(features["x"][:, :1] * tf.ones([1, 4], tf.float64), weights))
        ((gradient, _),) = tf.train.GradientDescentOptimizer(0.1).compute_gradients(loss)
        mixed = tf.matmul(gradient, gradient, transpose_b=True)
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).apply_gradients([(mixed, weights)])}

    assert not infos(capture(build, FEATURES, seed=1))["weights"].is_updated_in_parts
