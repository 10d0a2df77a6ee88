"""Dense gradients leave in buckets: enough to pay for an exchange, and early where others are computed later."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops
from parallax_runner.plan.comm_options import Compression
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.routes.allreduce import dense as allreduce
from tests.single.plans import with_options
from tests.single.small_models import WIDTH, Features, captured, planned

LAYER_BYTES = WIDTH * WIDTH * 8
LAYERS = 16


@pytest.fixture(autouse=True)
def small_layers_are_worth_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce, "LEAST_BYTES", 2 * LAYER_BYTES)
    monkeypatch.setattr(allreduce, "REST_BYTES", 0)


def deep(layers: int = LAYERS) -> Callable[[Features], tf.Tensor]:
    """A model of kernels «layer_0» to the last; the last one's gradient is there first."""

    def model(features: Features) -> tf.Tensor:
        x = features["x"]
        for layer in range(layers):
            x = tf.tanh(tf.matmul(x, tf.get_variable(f"layer_{layer}", [WIDTH, WIDTH], tf.float64)))
        return tf.reduce_sum(x, axis=1)

    return model


def rewritten(model: Callable[[Features], tf.Tensor]) -> DistributedGraph:
    single = captured(model)
    return rewrite_for_rank(single, planned(single, comm="mpi"), rank=0, seed=1)


def buckets(graph: tf.Graph) -> list[tf.Operation]:
    """The exchanges of gradients, in order."""
    found = [op for op in graph.get_operations() if op.type == "HorovodGroupedAllreduce" and "gradients" in op.name]
    return sorted(found, key=lambda op: len(heavy_ops(edit.ancestors([op]))))


def lengths(graph: tf.Graph) -> list[int]:
    return [len(op.inputs) for op in buckets(graph)]


def test_layers_leave_two_by_two_and_the_first_ones_together() -> None:
    """What appears while the last sixteenth is computed has a bucket with those before it."""
    assert lengths(rewritten(deep(layers=15)).graph) == [2, 2, 2, 2, 2, 2, 3]


def test_a_small_rest_leaves_with_the_bucket_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce, "REST_BYTES", 2 * LAYER_BYTES + 1)
    assert lengths(rewritten(deep(layers=16)).graph) == [2, 2, 2, 2, 2, 2, 4]


def test_an_eighth_of_all_is_a_bucket() -> None:
    assert lengths(rewritten(deep(layers=32)).graph) == [4] * 8


def test_no_bucket_is_larger_than_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce, "LEAST_BYTES", LAYER_BYTES)
    monkeypatch.setattr(allreduce, "MOST_BYTES", LAYER_BYTES)
    assert lengths(rewritten(deep()).graph) == [1] * LAYERS


def test_gradients_that_appear_together_share_an_exchange() -> None:
    """Those of a layer that is used again and again are all there at the end."""

    def recurrent(features: Features) -> tf.Tensor:
        kernels = [tf.get_variable(f"kernel_{number}", [WIDTH, WIDTH], tf.float64) for number in range(4)]
        x = features["x"]
        for _ in range(20):
            for kernel in kernels:
                x = tf.tanh(tf.matmul(x, kernel))
        return tf.reduce_sum(x, axis=1)

    assert lengths(rewritten(recurrent).graph) == [4]


def test_later_layers_wait_until_a_bucket_may_leave() -> None:
    """Otherwise TensorFlow, with one thread, computes all that sends nothing first."""
    graph = rewritten(deep()).graph
    *early, last = buckets(graph)
    assert early
    for bucket, following in zip(early, [*early[1:], last], strict=True):
        assert {tensor.op.type for tensor in bucket.inputs} == {"EnsureShape"}
        own = edit.ancestors([tensor.op for tensor in bucket.inputs])
        later = heavy_ops(edit.ancestors([following]) - own)
        waiting = [op for op in later if op.control_inputs]
        assert waiting
        for op in waiting:
            assert {each.op.inputs[0].op for each in bucket.inputs} <= set(op.control_inputs)


def test_nothing_waits_for_what_comes_of_an_exchange() -> None:
    """Of two exchanges one after the other, as compression has them, the second has no computing before it."""
    single = captured(deep())
    plan = with_options(planned(single, comm="mpi"), compression=Compression.FP16)
    graph = rewrite_for_rank(single, plan, rank=0, seed=1).graph
    waiting = [op for op in heavy_ops(graph.get_operations()) if op.control_inputs]
    assert waiting
    assert not any(op.type.startswith("Horovod") for op in edit.ancestors(waiting))
