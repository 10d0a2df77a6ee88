"""`action=verify` repeats a run in parts, each of which begins with the run's own values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan
from parallax_runner.verify.prove import TOLERANCE_FLOAT64, Proof
from tests.single.verify.reference_cases import Batch, assert_equal, captured, distinct, model, started

RANKS = 2
Values = dict[str, np.ndarray]


def plan_of(single: SingleDeviceGraph) -> Plan:
    variables = tuple(classify(single))
    request = PlanRequest("mpi", variables, fingerprint=single.fingerprint, workers=RANKS, servers=0)
    return make_plan(request)


def batches(part: int) -> list[list[Batch]]:
    return [[distinct(step, rank) for rank in range(RANKS)] for step in (2 * part, 2 * part + 1)]


def run(single: SingleDeviceGraph, errors: Sequence[float]) -> list[Values]:
    """Trains in parts of two steps, and adds an error to the first value of the matrix after each part. Returns the
    values before the first part and after each part."""
    with started(single, ranks=RANKS) as reference:
        found = [reference.values()]
        for part, error in enumerate(errors):
            for each in batches(part):
                reference.step(each)
            values = reference.values()
            values["matrix"][0, 0] += error
            reference.load(values)
            found.append(values)
    return found


def proven(single: SingleDeviceGraph, values: Sequence[Values]) -> tuple[Proof, list[bool]]:
    with Proof(single, plan_of(single), seed=1, first_step=0, initial=values[0]) as proof:
        equal = []
        for part, after in enumerate(values[1:]):
            equal.append(proof.add(batches(part), after))
            proof.begin_part(after)
    return proof, equal


def change(values: Sequence[Values]) -> float:
    """The smallest of the largest changes of the matrix in a part."""
    return min(float(np.abs(b["matrix"] - a["matrix"]).max()) for a, b in itertools.pairwise(values))


def test_small_errors_do_not_add_up() -> None:
    single = captured(model(optimizer="adagrad"))
    error = 0.5 * TOLERANCE_FLOAT64 * change(run(single, [0.0] * 4))
    exact, rounded = run(single, [0.0] * 4), run(single, [error] * 4)
    proof, equal = proven(single, rounded)
    assert equal == [True] * 4
    assert proof.comparison is not None and proof.comparison.ok
    assert 0.3 * TOLERANCE_FLOAT64 < proof.comparison.max_relative < TOLERANCE_FLOAT64
    with pytest.raises(AssertionError):  # from the first step to the last, they do
        assert_equal(rounded[-1], exact[-1], tolerance=error)


def test_the_first_part_that_differs_is_kept() -> None:
    single = captured(model(optimizer="adagrad"))
    proof, equal = proven(single, run(single, [0.0, 0.01, 0.0, 0.02]))
    assert equal == [True, False, False, False]
    assert proof.comparison is not None and proof.comparison.first_difference is not None
    assert (proof.comparison.first_difference.name, proof.comparison.first_difference.index) == ("matrix", (0, 0))
    assert proof.comparison.first_difference.max_absolute == pytest.approx(0.01)


def counting(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """Each rank adds up what it sees in its own batches, and its loss depends on that."""
    matrix = tf.get_variable("matrix", initializer=np.ones((3, 3)))
    seen = tf.get_variable("seen", initializer=np.zeros(()), trainable=False)
    target = tf.cast(features["target"], tf.float64)
    loss = tf.reduce_mean((tf.matmul(target, matrix) - seen) ** 2)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.control_dependencies([train_op]):
        return {"loss": loss, "train_op": tf.group(seen.assign_add(tf.reduce_sum(target)))}


def test_a_rank_keeps_what_it_alone_has_seen() -> None:
    single = captured(counting)
    with started(single, ranks=RANKS) as through, started(single, ranks=RANKS) as parts:
        for part in range(3):
            for each in batches(part):
                through.step(each)
                parts.step(each)
            assert_equal(parts.values(), through.values())
            values = through.values()
            parts.follow(values)
            assert_equal(parts.values(), values, tolerance=0)
        moved = through.values()
        moved["matrix"] = moved["matrix"] + 1
        parts.follow(moved)
        np.testing.assert_array_equal(parts.values()["matrix"], moved["matrix"])
        parts.load(values)  # the chief's values on all ranks are another run
        for each in batches(3):
            through.step(each)
            parts.step(each)
        assert abs(parts.values()["matrix"] - through.values()["matrix"]).max() > 1e-3
