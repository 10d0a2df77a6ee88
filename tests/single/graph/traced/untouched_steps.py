"""Compares a captured step with the same step in plain TensorFlow, which trains on the batches of all ranks at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.verify.reference import Reference

ROWS, WIDTH, BATCH, STEPS = 7, 3, 4, 3
FEATURES = {
    "ids": ((BATCH,), "int64"),
    "pairs": ((BATCH, 2), "int32"),
    "x": ((BATCH, WIDTH), "float64"),
    "y": ((BATCH,), "float64"),
}
# Returns a step, and the variables that it trains or keeps.
Build = Callable[[], tuple[Any, list[tf.Variable]]]
Batch = dict[str, np.ndarray]


def batch(number: int, size: int = BATCH) -> Batch:
    """The batch with this number, with repeated ids."""
    draw = np.random.default_rng(number)
    return {
        "ids": draw.integers(0, ROWS - 2, size),
        "pairs": draw.integers(0, ROWS - 2, (size, 2)).astype(np.int32),
        "x": draw.normal(size=(size, WIDTH)),
        "y": draw.normal(size=size),
    }


def table(name: str = "table", **options: Any) -> tf.Variable:
    """[ROWS, WIDTH]."""
    return tf.Variable(np.arange(float(ROWS * WIDTH)).reshape(ROWS, WIDTH) / 20, name=name, **options)


def weights(name: str = "weights", **options: Any) -> tf.Variable:
    """[WIDTH, WIDTH]."""
    return tf.Variable(np.eye(WIDTH) + np.arange(9.0).reshape(3, 3) / 9, name=name, **options)


def loss_of(rows: Any, matrix: Any, given: Any) -> Any:
    """The mean squared error of a prediction from rows [batch, WIDTH] and a matrix [WIDTH, WIDTH]."""
    return tf.reduce_mean(tf.square(tf.reduce_sum(tf.matmul(rows * given["x"], matrix), axis=1) - given["y"]))


def captured(build: Build) -> SingleDeviceGraph:
    """The captured step, which the analysis accepts."""
    single = capture_step(lambda: build()[0], FEATURES, seed=7, options={})
    classify(single)
    return single


def largest_difference(build: Build, *, ranks: int = 2) -> float:
    """Between all variables after STEPS steps of `ranks` ranks, and after as many in plain TensorFlow."""
    step, variables = build()
    with Reference(captured(build), ranks=ranks, average_sparse=True) as reference:
        reference.initialize()
        for number in range(STEPS):
            batches = [batch(number * ranks + rank) for rank in range(ranks)]
            reference.step(batches)
            together = {name: np.concatenate([one[name] for one in batches]) for name in FEATURES}
            step({name: tf.constant(value) for name, value in together.items()})
        found = reference.values()
    return max(float(np.max(np.abs(found[one.name.split(":")[0]] - one.numpy()))) for one in variables)
