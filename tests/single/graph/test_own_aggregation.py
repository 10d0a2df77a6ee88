"""Optimizers of other distribution libraries that are left in a model or script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from parallax_runner.collectives import ops as collectives
from parallax_runner.errors import CaptureError
from parallax_runner.graph.script_graph import capture_script
from tests.single.small_models import ROWS, WIDTH


class AsHorovods(tf.train.GradientDescentOptimizer):
    """Averages gradients over ranks with the op of Horovod's optimizer, which itself adds it only after `hvd.init`."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        pairs = super().compute_gradients(*args, **kwargs)
        return [(self.averaged(tf.convert_to_tensor(gradient)), variable) for gradient, variable in pairs]

    @staticmethod
    def averaged(gradient: tf.Tensor) -> tf.Tensor:
        return collectives.sum_of_one(gradient, name="averaged")


class AsHorovodsInBranch(AsHorovods):
    """As Horovod's optimizer does with control flow of TensorFlow 2."""

    @staticmethod
    def averaged(gradient: tf.Tensor) -> tf.Tensor:
        both = tf2.cond(
            tf.size(gradient) > 1, lambda: collectives.sum_of_one(gradient, name="averaged"), lambda: gradient
        )
        return tf.ensure_shape(both, gradient.shape)


def sync_replicas() -> tf.train.Optimizer:
    inner = tf.train.AdamOptimizer(0.1)
    return tf.train.SyncReplicasOptimizer(inner, replicas_to_aggregate=2, total_num_replicas=2)


def script(make: Callable[[], tf.train.Optimizer]) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        table = tf.get_variable("table", [ROWS, WIDTH])
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [0, 1]))
        make().minimize(loss, global_step=tf.train.get_or_create_global_step())
    return graph


@pytest.mark.parametrize(
    ("make", "op", "library"),
    [
        (sync_replicas, r"\((Sparse|Resource)\w*AccumulatorTakeGradient\)", r"tf\.train\.SyncReplicasOptimizer"),
        (lambda: AsHorovods(0.1), r"\(HorovodAllreduce\)", "Horovod's DistributedOptimizer"),
        (lambda: AsHorovodsInBranch(0.1), r"the function .*\(HorovodAllreduce\)", "Horovod's DistributedOptimizer"),
    ],
    ids=["SyncReplicas", "Horovod", "Horovod in a branch"],
)
def test_an_optimizer_that_aggregates_gradients_itself_is_named(
    make: Callable[[], tf.train.Optimizer], op: str, library: str
) -> None:
    with pytest.raises(CaptureError, match=f"{op}, with which {library} aggregates .*without this wrapper"):
        capture_script(script(make))


def test_collectives_of_a_forward_pass_are_the_models_own() -> None:
    graph = tf.Graph()
    with graph.as_default():
        weights = tf.get_variable("weights", [WIDTH])
        mean = tf.stop_gradient(collectives.sum_of_one(tf.ones([WIDTH]), name="mean"))
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.square(weights - mean)))
    assert [one.variable for one in capture_script(graph).gradients] == ["weights"]


def test_gradients_inside_a_function_are_named() -> None:
    graph = tf.Graph()
    with graph.as_default():
        weights = tf.get_variable("weights", [WIDTH], use_resource=True)
        gradient = tf.function(lambda: tf.gradients(tf.reduce_sum(tf.square(weights)), [weights])[0], autograph=False)()
        tf.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, weights)])
    with pytest.raises(
        CaptureError, match=r"The gradient of «weights» is computed inside a tf\.function: compute it out"
    ):
        capture_script(graph)
