"""train.on_nan=skip: a step with NaN in it leaves all variables alone, on all ranks, and the next one goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.skippable_updates import check_skippable_updates
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.comm_options import Compression
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.single.plans import with_options
from tests.single.rewrite.one_device import OneDevice, Values, assert_same, batch, graph_of
from tests.single.small_models import FEATURES, OPTIMIZERS, Features, captured, clip, planned, sparse_model

BAD = 1  # the step of three in which one rank's data is not finite


def batches(step: int, ranks: int) -> list[Values]:
    return [batch(10 * step + rank) for rank in range(ranks)]


def spoilt(step: int, ranks: int, value: float = np.nan) -> list[Values]:
    """One number of the last rank's data is not finite."""
    found = batches(step, ranks)
    found[-1]["y"][0] = value
    return found


def trained(device: OneDevice, steps: list[list[Values]]) -> list[Values]:
    """Variables of each rank."""
    device.initialize()
    for step in steps:
        device.step(step)
    return [device.variables(rank) for rank in range(len(device.ranks))]


def without_step(values: Values) -> Values:
    return {name: value for name, value in values.items() if name != "global_step"}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_device(optimizer: str, value: float) -> None:
    single = captured(optimizer=optimizer, process=clip)
    good = [batches(0, 1), batches(2, 1)]
    (expected,) = trained(graph_of(single, "local"), good)
    (found,) = trained(graph_of(single, "local", skip_nonfinite=True), [good[0], spoilt(BAD, 1, value), good[1]])
    assert_same(without_step(found), without_step(expected))
    assert (found["global_step"], expected["global_step"]) == (3, 2)


def servers_cases() -> list[Any]:
    """Every optimizer with every number of workers; the default tier has each number of workers."""
    basic = (("adagrad", 1), ("adagrad", 2), ("adam", 3))
    return [
        pytest.param(optimizer, workers, id=f"{'' if (optimizer, workers) in basic else 'more-'}{workers}-{optimizer}")
        for optimizer in OPTIMIZERS
        for workers in (1, 2, 3)
    ]


@pytest.mark.parametrize(("optimizer", "workers"), servers_cases())
def test_servers(optimizer: str, workers: int) -> None:
    single = captured(optimizer=optimizer, process=clip)
    options: dict[str, Any] = {"workers": workers, "partitions": 2}
    good = [batches(0, workers), batches(2, workers)]
    expected = trained(graph_of(single, "ps", **options), good)
    found = trained(graph_of(single, "ps", skip_nonfinite=True, **options), [good[0], spoilt(BAD, workers), good[1]])
    for one, other in zip(found, expected, strict=True):
        assert_same(without_step(one), without_step(other), 1e-12)  # ranks are added as they come
        assert one["global_step"] == 3


def test_without_it_nan_is_everywhere() -> None:
    single = captured(sparse_model)
    (found,) = trained(graph_of(single, "local"), [spoilt(0, 1)])
    assert np.isnan(found["table"]).any()


def test_infinite_gradients_of_a_finite_loss_are_skipped() -> None:
    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64, initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.sqrt(tf.reduce_sum(tf.square(weights))) + features["y"])
        optimizer = OPTIMIZERS["momentum"]()
        return {"loss": loss, "train_op": optimizer.minimize(loss, tf.train.get_or_create_global_step())}

    device = graph_of(capture(build, FEATURES, seed=1), "local", skip_nonfinite=True)
    device.initialize()
    (loss,) = device.step([batch(0)])
    assert np.isfinite(loss)
    assert_same(without_step(device.variables()), {"weights": np.zeros(2), "weights/Momentum": np.zeros(2)})


def test_writes_of_parts_and_of_counters_are_skipped() -> None:
    """An assignment to a slice, and an op that takes nothing but its variable."""

    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64, initializer=tf.zeros_initializer(), use_resource=True)
        count = tf.get_variable("count", [], tf.int64, initializer=tf.zeros_initializer(), use_resource=True)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(weights) - features["y"]))
        (gradient,) = tf.gradients(loss, weights)
        updates = [
            weights[:1].assign(weights[:1] - gradient[:1]),
            tf.raw_ops.ResourceCountUpTo(resource=count.handle, limit=9, T=tf.int64),
        ]
        return {"loss": loss, "train_op": tf.group(*updates)}

    single = capture(build, FEATURES, seed=1)
    check_skippable_updates(single)
    device = graph_of(single, "local", skip_nonfinite=True)
    device.initialize()
    device.step([spoilt(0, 1)[0]])
    assert_same(device.variables(), {"weights": np.zeros(2), "count": np.zeros((), np.int64)})
    device.step([batch(0)])
    assert device.variables()["count"] == 1
    assert device.variables()["weights"][0] != 0.0


def test_gradients_too_large_for_what_they_travel_as_are_skipped() -> None:
    """float16 ends at 65,504."""

    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64, initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.reduce_sum(weights) * 1e6 + features["y"])
        optimizer = OPTIMIZERS["momentum"]()
        return {"loss": loss, "train_op": optimizer.minimize(loss, tf.train.get_or_create_global_step())}

    single = capture(build, FEATURES, seed=1)
    plan = with_options(planned(single, "ps"), compression=Compression.FP16)
    ranks = [rewrite_for_rank(single, plan, rank=rank, seed=1, skip_nonfinite=True) for rank in range(plan.workers)]
    for found in trained(OneDevice(*ranks), [batches(0, plan.workers)]):
        assert_same(without_step(found), {"weights": np.zeros(2), "weights/Momentum": np.zeros(2)})


def statistics(*, before_loss: bool) -> SingleDeviceGraph:
    """A moving mean that gradients wait for, as `tf.layers.batch_normalization` is used, or the loss itself."""

    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64)
        mean = tf.get_variable("moving_mean", [], tf.float64, initializer=tf.zeros_initializer(), trainable=False)
        outputs = tf.reduce_sum(features["x"] * weights, axis=1)
        update = mean.assign_add(0.1 * tf.reduce_mean(features["y"]))
        with tf.control_dependencies([update] if before_loss else []):
            loss = tf.reduce_mean(tf.square(outputs - features["y"]))
        with tf.control_dependencies([update]):
            train_op = OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())
        return {"loss": loss, "train_op": train_op}

    return capture(build, FEATURES, seed=1)


def test_statistics_that_gradients_wait_for_are_skipped_too() -> None:
    (found,) = trained(graph_of(statistics(before_loss=False), "local", skip_nonfinite=True), [spoilt(0, 1)])
    assert found["moving_mean"] == 0
    assert np.isfinite(found["weights"]).all()


def test_statistics_that_the_loss_waits_for_are_not() -> None:
    (found,) = trained(graph_of(statistics(before_loss=True), "local", skip_nonfinite=True), [spoilt(0, 1)])
    assert np.isnan(found["moving_mean"])
    assert np.isfinite(found["weights"]).all()


def test_each_rank_knows_whether_the_step_counted() -> None:
    device = graph_of(captured(), "ps", skip_nonfinite=True, workers=2)
    device.initialize()
    fetches = [
        (device.there(number, rank.applied), device.there(number, rank.train_op))
        for number, rank in enumerate(device.ranks)
    ]
    for given, expected in ((batches(0, 2), True), (spoilt(1, 2), False), (batches(2, 2), True)):
        assert [applied for applied, _ in device.session.run(fetches, device.fed(given))] == [expected] * 2


def test_an_update_in_a_branch_of_tensorflow_1() -> None:
    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(features["x"] * weights, axis=1) - features["y"]))
        optimizer, step = OPTIMIZERS["momentum"](), tf.train.get_or_create_global_step()
        pairs = optimizer.compute_gradients(loss)
        few = tf.train.get_global_step() < 2
        return {"loss": loss, "train_op": tf.cond(few, lambda: optimizer.apply_gradients(pairs, step), tf.no_op)}

    tf.disable_control_flow_v2()
    try:
        single = capture(build, FEATURES, seed=1)
    finally:
        tf.enable_control_flow_v2()
    (expected,) = trained(graph_of(single, "local"), [batches(0, 1)])
    device = graph_of(single, "local", skip_nonfinite=True)
    (found,) = trained(device, [batches(0, 1), spoilt(BAD, 1)])
    assert_same(without_step(found), without_step(expected))
    device.step(batches(2, 1))  # the branch is not taken, and nothing waits for it for ever
    assert_same(device.variables(), found)
