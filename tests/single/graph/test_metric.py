"""The metrics of a training step and of a validation, and their sums side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner import metrics
from parallax_runner.errors import CaptureError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.metric import joined_sums, metrics_of_training, step_sums


def test_a_training_step_has_no_metrics_of_groups() -> None:
    given = {"mean": metrics.mean([1.0]), "gauc": metrics.gauc([1], [0.5], [3])}
    assert list(metrics_of_training(given, is_validated=True)) == ["mean"]
    with pytest.raises(CaptureError, match="the model's metric «gauc» is one of groups, which only a validation"):
        metrics_of_training(given, is_validated=False)


def test_joined_sums_have_the_values_of_both() -> None:
    one = step_sums({"mean": metrics.mean([1.0]), "gauc": metrics.gauc([1], [0.5], [3])})
    other = step_sums({"rmse": metrics.rmse([1.0], [0.5])})
    both = joined_sums(one, other)
    assert both is not None
    assert both.results([np.array(6.0), np.array(2.0), np.array(8.0), np.array(2.0)]) == {"mean": 3.0, "rmse": 2.0}
    assert both.directions == {"mean": None, "gauc": "maximize", "rmse": "minimize"}
    assert len(both.every) == 4 + len(both.rows["gauc"])
    assert joined_sums(one, None) is one and joined_sums(None, other) is other


@pytest.mark.parametrize("key", ["metrics", "validation_metrics"])
def test_a_graph_has_the_rows_of_its_metrics_of_groups_in_validation_only(key: str) -> None:
    def build(features: Any) -> dict[str, Any]:
        weight = tf.get_variable("weight", [3, 1])
        logit = tf.matmul(features["x"], weight)
        loss = tf.reduce_mean(tf.square(logit))
        found = {"gauc": metrics.gauc(features["y"], logit, features["user"]), "size": metrics.mean(logit)}
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {"loss": loss, "train_op": train_op, "validation_loss": loss, key: found}

    shapes = {"x": ((4, 3), "float32"), "y": ((4,), "float32"), "user": ((4,), "int64")}
    single = capture(build, shapes, seed=1)
    assert single.validation_metrics is not None
    assert list(single.validation_metrics.rows) == ["gauc"] and len(single.validation_metrics.tensors) == 2
    assert set(single.validation_metrics.rows["gauc"]) <= set(single.fetched_in_validation)
    assert (single.metrics is None) == (key == "validation_metrics")
    assert single.metrics is None or not single.metrics.rows
