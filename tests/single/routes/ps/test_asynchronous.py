"""Asynchronous training: each replica's push is an update of its own, and nobody sees half of one."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.errors import PlanError
from parallax_runner.graph import edit
from parallax_runner.graph.capture import capture
from parallax_runner.graph.devices import named_server
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.parallel.cases import Case
from tests.single.plans import plan_of
from tests.single.rewrite.one_device import OneDevice, Values, assert_same, batch, graph_of
from tests.single.small_models import BATCH, FEATURES, OPTIMIZERS, Features, captured, clip, infos


def asynchronous(single: SingleDeviceGraph, *, workers: int = 2, **options: Any) -> Plan:
    return plan_of(
        list(infos(single).values()),
        comm="ps",
        workers=workers,
        partitions=2,
        fingerprint=single.fingerprint,
        **({"sync": False} | options),
    )


def started(single: SingleDeviceGraph, **options: Any) -> OneDevice:
    plan = asynchronous(single, **options)
    device = OneDevice(*(rewrite_for_rank(single, plan, rank=rank, seed=1) for rank in range(plan.workers)))
    device.initialize()
    return device


def push(device: OneDevice, rank: int, values: Values) -> int:
    """One step of one rank, alone; what staleness it saw."""
    graph = device.ranks[rank]
    fed = {device.there(rank, graph.features[0][name]): value for name, value in values.items()}
    staleness, _ = device.session.run([device.there(rank, graph.staleness), device.there(rank, graph.train_op)], fed)
    return int(staleness[0])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_push_after_another_is_one_device_that_takes_all_batches(optimizer: str) -> None:
    single = captured(optimizer=optimizer, process=clip)
    device, alone = started(single), graph_of(single, "local")
    alone.initialize()
    for number in range(6):
        assert push(device, number % 2, batch(number)) == 0
        alone.step([batch(number)])
    for rank in (0, 1):  # The counters too: both see all of the updates.
        assert_same(device.variables(rank), alone.variables(), 1e-12)


@pytest.mark.parametrize("model", ["accumulated", "joined", "joined_in_order"])
def test_what_a_model_makes_of_its_gradients_is_made_of_each_push(model: str) -> None:
    """All replicas add to one sum of gradients, and each push may be of several micro-batches."""
    case = Case(comm="ps", model=model, optimizer="adam", clip=True)
    single = case.single()
    plan = asynchronous(single)
    assert not [name for name in plan.counters if name.startswith("sum_")]
    sums = [slot for variable in plan.variables for slot in variable.slots if "sum_" in slot]
    assert len(sums) == (len([v for v in plan.variables if v.gradient != "none"]) if model == "accumulated" else 0)
    device, alone = started(single), graph_of(single, "local")
    alone.initialize()
    for number in range(7):
        assert push(device, number % 2, case.batch(number, 0)) == 0
        alone.step([case.batch(number, 0)])
    for rank in (0, 1):
        assert_same(device.variables(rank), alone.variables(), 1e-12)


def test_a_batch_statistic_stays_with_its_replica() -> None:
    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64)
        mean = tf.get_variable("moving_mean", [], tf.float64, initializer=tf.zeros_initializer(), trainable=False)
        update = mean.assign_add(tf.reduce_sum(features["y"]))
        with tf.control_dependencies([update]):
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(features["x"] * weights, axis=1) - features["y"]))
        return {"loss": loss, "train_op": OPTIMIZERS["adam"]().minimize(loss, tf.train.get_or_create_global_step())}

    single = capture(build, FEATURES, seed=1)
    assert set(asynchronous(single).counters) == {"global_step", "beta1_power", "beta2_power"}
    device = started(single)
    push(device, 0, batch(0))
    push(device, 1, batch(1))
    assert device.variables(0)["moving_mean"] == pytest.approx(batch(0)["y"].sum())
    assert device.variables(1)["moving_mean"] == pytest.approx(batch(1)["y"].sum())


def test_a_counter_that_only_a_branch_uses_is_refused() -> None:
    single = captured()
    stuck = [
        dataclasses.replace(info, immovable_op="cond/If" if info.counts else None) for info in infos(single).values()
    ]
    with pytest.raises(PlanError, match=r"comm\.sync=false: variable «global_step».*«cond/If»"):
        plan_of(stuck, comm="ps", servers=1, sync=False)


@pytest.mark.parametrize("options", [{}, {"sync": True, "backup_workers": 1}])
def test_a_counter_that_gradients_wait_for_is_refused(options: dict[str, Any]) -> None:
    """Its write needs a turn, which is asked for with the gradients."""

    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64)
        step = tf.train.get_or_create_global_step()
        with tf.control_dependencies([step.assign_add(1, name="early")]):
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(features["x"] * weights, axis=1) - features["y"]))
            return {"loss": loss, "train_op": OPTIMIZERS["momentum"]().minimize(loss)}

    single = capture(build, FEATURES, seed=1)
    with pytest.raises(PlanError, match=r"«global_step» counts .* «early\w*» .* or writes it before the gradients"):
        asynchronous(single, **options)


def sleeper(passing: threading.Event, pulled: threading.Event) -> SingleDeviceGraph:
    """Linear; between its pull and its push a step with a negative first «x» waits for `passing`."""

    def wait(x: np.ndarray) -> np.ndarray:
        if x[0, 0] < 0:
            pulled.set()
            assert passing.wait(100)
        return x

    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64)
        x = tf.numpy_function(wait, [features["x"]], tf.float64)
        x.set_shape([BATCH, 2])
        read = tf.identity(weights)
        with tf.control_dependencies([read]):
            x = tf.identity(x)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * read, axis=1) - features["y"]))
        return {"loss": loss, "train_op": OPTIMIZERS["adagrad"]().minimize(loss, tf.train.get_or_create_global_step())}

    return capture(build, FEATURES, seed=1)


def with_sign(values: Values, sign: float) -> Values:
    return values | {"x": sign * np.abs(values["x"])}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_who_has_its_turn_waits_for_no_worker(optimizer: str) -> None:
    """Whose only thread may be in something long: what a turn needs is on the servers when it is asked for."""
    single = captured(optimizer=optimizer, process=clip)
    graph = rewrite_for_rank(single, asynchronous(single, staleness=1), rank=1, seed=1).graph
    held, end = (op for op in graph.get_operations() if op.type in ("MutexLock", "ConsumeMutexLock"))
    before = edit.ancestors([held])
    inside = {op for op in edit.ancestors([end]) - before if held in edit.ancestors([op])}
    assert {op.inputs[0].op.name for op in inside if edit.is_write(op)} > {"global_step", "pace/VarHandleOp"}
    for op in inside:
        assert named_server(op.device) is not None
        for tensor in op.inputs:
            assert tensor.op in inside or tensor.device == op.device
            if tensor.op not in inside | before:  # it may come late, but not from a worker
                assert all(named_server(op.device) is not None for op in edit.ancestors([tensor.op]))
        assert all(control in inside | before or named_server(control.device) == 0 for control in op.control_inputs)


def test_a_slow_replica_delays_nobody_and_sees_how_stale_it_was() -> None:
    passing, pulled = threading.Event(), threading.Event()
    single = sleeper(passing, pulled)
    device = started(single)
    seen: list[int] = []
    slow = threading.Thread(target=lambda: seen.append(push(device, 1, with_sign(batch(1), -1))))
    slow.start()
    assert pulled.wait(100)
    assert [push(device, 0, with_sign(batch(number), 1)) for number in range(3)] == [0, 0, 0]
    passing.set()
    slow.join()
    assert seen == [3]
    assert device.variables()["global_step"] == 4


def test_bounded_staleness_stops_at_k() -> None:
    single = captured()
    device = started(single, staleness=2)
    begins = [device.there(rank, graph.may_start) for rank, graph in enumerate(device.ranks)]

    def step(rank: int, timeout_ms: int = 60_000) -> None:
        device.session.run(begins[rank], options=tf.RunOptions(timeout_in_ms=timeout_ms))
        push(device, rank, batch(rank))

    step(0)
    step(0)
    with pytest.raises(tf.errors.DeadlineExceededError):
        step(0, 500)
    step(1)
    step(0)
    with pytest.raises(tf.errors.DeadlineExceededError):
        step(0, 500)
    for _ in range(4):  # The other catches up, and may then be ahead by two itself.
        step(1)
    with pytest.raises(tf.errors.DeadlineExceededError):
        step(1, 500)


def test_without_a_bound_nobody_asks() -> None:
    single = captured()
    assert rewrite_for_rank(single, asynchronous(single), rank=0, seed=1).may_start is None


def same_pushes() -> SingleDeviceGraph:
    """The gradient is 1 everywhere: each push takes 1 from «weights» and adds 1 to its slot, in float64 exactly."""

    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [200_000], tf.float64, initializer=tf.zeros_initializer())
        loss = tf.reduce_sum(weights) + 0 * tf.reduce_sum(features["y"])
        # Momentum 1: after n pushes the slot is n, and the variable -n (n + 1) / 2.
        optimizer = tf.train.MomentumOptimizer(1.0, 1.0)
        return {"loss": loss, "train_op": optimizer.minimize(loss, tf.train.get_or_create_global_step())}

    return capture(build, FEATURES, seed=1)


def test_a_checkpoint_has_the_same_pushes_in_a_variable_and_its_slots() -> None:
    single = same_pushes()
    plan = asynchronous(single)
    graphs = [rewrite_for_rank(single, plan, rank=rank, seed=1) for rank in (0, 1)]
    checkpoints = CheckpointOps(graphs[0])
    device = OneDevice(*graphs)
    device.initialize()
    ended = threading.Event()

    def work(rank: int) -> None:
        while not ended.is_set():
            push(device, rank, batch(rank))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    names = [part.name for part in checkpoints.slices]
    reads = [device.there(0, value) for value in checkpoints.values]
    release_mutex = device.there(0, checkpoints.release_mutex)
    found = [device.session.run([reads, release_mutex])[0]]
    moved = names.index("global_step")
    deadline = time.monotonic() + 60
    while len(found) < 60 or found[-1][moved] == found[0][moved]:
        assert time.monotonic() < deadline
        found.append(device.session.run([reads, release_mutex])[0])
    ended.set()
    for thread in threads:
        thread.join()
    steps = []
    for values in found:
        read = dict(zip(names, values, strict=True))
        pushes = int(read["global_step"])
        np.testing.assert_array_equal(read["weights/Momentum"], float(pushes))
        np.testing.assert_array_equal(read["weights"], -pushes * (pushes + 1) / 2)
        steps.append(pushes)
    assert steps[-1] > steps[0]


def test_replicas_of_one_worker_push_each_for_itself() -> None:
    single = captured(optimizer="adam", process=clip)
    plan = dataclasses.replace(asynchronous(single, workers=1, staleness=1), replicas_per_worker=2)
    graph = rewrite_for_rank(single, plan, rank=0, seed=1)
    device = OneDevice(graph)
    device.initialize()
    fed = {
        device.there(0, features[name]): value
        for number, features in enumerate(graph.features)
        for name, value in batch(number).items()
    }
    for _ in range(3):
        device.session.run(device.there(0, graph.may_start), options=tf.RunOptions(timeout_in_ms=60_000))
        staleness, _ = device.session.run([device.there(0, graph.staleness), device.there(0, graph.train_op)], fed)
        assert sorted(staleness) in ([0, 0], [0, 1])  # A replica may pull after the other has pushed.
    assert device.variables()["global_step"] == 6
    assert device.variables()["beta1_power"] == pytest.approx(0.9**7)
