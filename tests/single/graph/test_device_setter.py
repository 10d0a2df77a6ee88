"""`replica_device_setter` in a model's function."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.capture import capture
from tests.single.small_models import FEATURES, OPTIMIZERS, ROWS, WIDTH, Features

CLUSTER = {"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]}


def devices(scope: Any) -> dict[str, str]:
    """Of each op of a model that is built in a scope, with a branch in it."""

    def build(features: Features) -> dict[str, Any]:
        with scope():
            table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
            with tf.device("/job:ps/task:1"):
                weights = tf.get_variable("weights", [WIDTH], tf.float64)
            rows = tf.nn.embedding_lookup(table, features["ids"])
            loss = tf.reduce_mean(tf.cond(tf.reduce_sum(features["x"]) > 0, lambda: rows * weights, lambda: rows))
            train_op = OPTIMIZERS["adam"]().minimize(loss, global_step=tf.train.get_or_create_global_step())
        return {"loss": loss, "train_op": train_op}

    graph = capture(build, FEATURES, seed=1).meta_graph.graph_def
    return {node.name: node.device for node in graph.node}


@pytest.mark.parametrize("cluster", [{"cluster": CLUSTER}, {"ps_tasks": 2}])
def test_it_names_no_task_and_keeps_what_another_scope_says(cluster: dict[str, Any]) -> None:
    plain = devices(lambda: tf.device(None))
    assert devices(lambda: tf.device(tf.train.replica_device_setter(**cluster))) == plain
    assert plain["weights"].startswith("/job:ps/task:1")
    assert {device for device in plain.values() if device and "/job:ps/task:1" not in device} == set()


def test_the_workers_device_is_kept() -> None:
    setter = tf.train.replica_device_setter(worker_device="/job:worker/task:1/gpu:0", cluster=CLUSTER)
    found = devices(lambda: tf.device(setter))
    assert found["table"] == found["global_step"] == ""
    assert found["Mean"] == "/device:GPU:0"
