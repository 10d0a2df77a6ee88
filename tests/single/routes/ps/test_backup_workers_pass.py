"""Backup workers: a step is the mean over the first N-b workers' gradients, and what comes later goes nowhere."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.errors import PlanError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.distributed_graph import CLOSED
from parallax_runner.rewrite.passes import rewrite_for_rank
from tests.single.plans import plan_of
from tests.single.rewrite.one_device import OneDevice, Values, assert_same, batch, graph_of
from tests.single.small_models import FEATURES, OPTIMIZERS, Features, captured, clip, infos

WORKERS = 3


def with_backup(single: SingleDeviceGraph, *, backup_workers: int = 1) -> Plan:
    return plan_of(
        list(infos(single).values()),
        comm="ps",
        workers=WORKERS,
        partitions=2,
        fingerprint=single.fingerprint,
        backup_workers=backup_workers,
    )


class Backup(OneDevice):
    """Three workers, each of which does its steps when it is told to."""

    def __init__(self, single: SingleDeviceGraph, *, first_step: int = 0, **options: Any) -> None:
        plan = with_backup(single, **options)
        ranks = range(plan.workers)
        super().__init__(*(rewrite_for_rank(single, plan, rank=rank, seed=1, first_step=first_step) for rank in ranks))
        self.initialize()

    def next_step(self, rank: int, timeout_ms: int = 60_000) -> int:
        admission = self.ranks[rank].admission
        options = tf.RunOptions(timeout_in_ms=timeout_ms)
        return int(self.session.run(self.there(rank, admission.next_step), options=options))

    def compute(self, rank: int, values: Values) -> tuple[bool, float]:
        """A step of one rank; whether it was admitted, and the bytes that it sent."""
        graph = self.ranks[rank]
        fed = {self.there(rank, graph.features[0][name]): value for name, value in values.items()}
        fetches = [graph.admission.admitted, graph.sent_bytes, graph.loss, graph.train_op]
        admitted, sent_bytes, *_ = self.session.run([self.there(rank, one) for one in fetches], fed)
        return bool(admitted), float(sent_bytes.sum())

    def step(self, *admitted: int, number: int) -> None:
        """All ranks begin; those in `admitted` are first."""
        others = [rank for rank in range(WORKERS) if rank not in admitted]
        for rank in (*admitted, *others):
            assert self.compute(rank, batch(10 * number + rank))[0] == (rank in admitted)
        assert [self.next_step(rank) for rank in range(WORKERS)] == [number + 1] * WORKERS

    def close(self, rank: int) -> None:
        self.session.run(self.there(rank, self.ranks[rank].admission.close))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_is_the_mean_over_those_who_were_first(optimizer: str) -> None:
    single = captured(optimizer=optimizer, process=clip)
    device, two = Backup(single), graph_of(single, "ps", workers=2)
    two.initialize()
    for number, first in enumerate([(0, 1), (2, 1), (2, 0), (1, 2)]):
        device.step(*first, number=number)
        two.step([batch(10 * number + rank) for rank in sorted(first)])
    for rank in range(WORKERS):  # The counters too, also of those who missed a step.
        assert_same(device.variables(rank), two.variables(), 1e-12)


def test_late_gradients_go_nowhere_and_are_not_sent() -> None:
    single = captured()
    device, two = Backup(single), graph_of(single, "ps", workers=2)
    two.initialize()
    pushing = [device.compute(rank, batch(rank))[1] for rank in (0, 1)]
    two.step([batch(0), batch(1)])
    admitted, late_bytes = device.compute(2, batch(2))
    # A pull and no push; the one who led sent the crossings as well.
    assert not admitted
    assert 0 < late_bytes < pushing[0]
    assert_same(device.variables(), two.variables(), 1e-12)


def test_who_comes_late_goes_on_with_the_newest_step() -> None:
    device = Backup(captured(), first_step=7)
    for number in (7, 8, 9):
        for rank in (0, 1):
            assert device.compute(rank, batch(rank))[0]
            if rank == 0:  # Whose step is not complete waits.
                with pytest.raises(tf.errors.DeadlineExceededError):
                    device.next_step(0, timeout_ms=200)
        assert [device.next_step(rank) for rank in (0, 1)] == [number + 1] * 2
    assert not device.compute(2, batch(2))[0]
    assert device.next_step(2) == 10
    assert device.compute(2, batch(2))[0]


def test_nobody_is_in_a_step_twice() -> None:
    device = Backup(captured())
    assert device.compute(0, batch(0))[0]
    with pytest.raises(tf.errors.DeadlineExceededError):
        device.next_step(0, timeout_ms=200)
    device.compute(1, batch(1))
    assert device.next_step(0) == 1
    # Told of no step in between, it is late with what it computes now, though a place is free.
    device.compute(0, batch(2))
    device.compute(1, batch(3))
    assert device.variables()["global_step"] == 1


def test_when_it_is_closed_nobody_waits_for_a_step_that_is_never_complete() -> None:
    device = Backup(captured())
    assert device.compute(0, batch(0))[0]
    device.close(2)
    assert not device.compute(1, batch(1))[0]
    assert [device.next_step(rank) for rank in range(WORKERS)] == [CLOSED] * WORKERS


def test_what_was_admitted_in_full_is_done_though_it_is_closed() -> None:
    """The end comes between the last admission and the update."""
    single = captured()
    device = Backup(single)
    graph = device.ranks[1]
    device.compute(0, batch(0))
    fed = {device.there(1, graph.features[0][name]): value for name, value in batch(1).items()}
    # Only asks, and takes the last place.
    assert device.session.run(device.there(1, graph.admission.admitted), fed)
    device.close(0)
    assert not device.compute(2, batch(2))[0]
    assert device.next_step(2) == CLOSED


def test_an_update_of_each_workers_own_behind_the_shared_one_is_refused() -> None:
    def build(features: Features) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64)
        seen = tf.get_variable("seen", [], tf.float64, initializer=tf.zeros_initializer(), trainable=False)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(features["x"] * weights, axis=1) - features["y"]))
        update = OPTIMIZERS["adagrad"]().minimize(loss, tf.train.get_or_create_global_step())
        with tf.control_dependencies([update]):
            noted = seen.assign_add(tf.reduce_sum(features["y"]))
        return {"loss": loss, "train_op": noted.op}

    with pytest.raises(PlanError, match=r"comm\.ps\.backup_workers=1: «.*» updates each worker's own copy of"):
        Backup(capture(build, FEATURES, seed=1))


def test_a_checkpoint_tells_how_many_steps_it_contains() -> None:
    single = captured()
    plan = with_backup(single)
    graphs = [rewrite_for_rank(single, plan, rank=rank, seed=1, first_step=4) for rank in range(WORKERS)]
    checkpoints = CheckpointOps(graphs[0])
    device = OneDevice(*graphs)
    device.initialize()
    reads = [device.there(0, one) for one in (checkpoints.step, checkpoints.tell_read, checkpoints.release_mutex)]
    for number in (4, 5):
        assert device.session.run(reads)[0] == number
        assert device.session.run(device.there(0, checkpoints.wait)) == number
        for rank in (1, 2):  # The chief is in none of them.
            fed = {device.there(rank, graphs[rank].features[0][name]): value for name, value in batch(rank).items()}
            device.session.run(device.there(rank, graphs[rank].train_op), fed)
        device.session.run([device.there(rank, graphs[rank].admission.next_step) for rank in (1, 2)])
