"""The model whose computation only waits: its variables, and how long a step takes at least."""

from __future__ import annotations

import time

import numpy as np
import tensorflow.compat.v1 as tf

from benchmarks.waiting import BACKWARD_TO_FORWARD, LAYERS, Waits, build, waiting
from models import lm

SIZES = {"vocab_size": 50, "embedding_size": 4, "num_units": 4, "projection_size": 4, "num_sampled": 7}
COMPUTING_MS = 120.0


def variables_of(model, **more: float) -> dict[str, list[int]]:
    with tf.Graph().as_default() as graph:
        features = {name: tf.zeros([2, 3], tf.int32) for name in ("words", "next_words")}
        model(features, tf.train.AdagradOptimizer(0.1), **SIZES, **more)
        return {variable.name: variable.shape.as_list() for variable in graph.get_collection("variables")}


def test_it_has_the_variables_of_the_language_model() -> None:
    assert variables_of(build, computing_ms=COMPUTING_MS) == variables_of(lm.build)


def test_values_and_gradients_pass_after_the_waits() -> None:
    waits = Waits.of_step(COMPUTING_MS)
    assert LAYERS * (waits.forward_ms + waits.backward_ms) == COMPUTING_MS
    assert waits.backward_ms == BACKWARD_TO_FORWARD * waits.forward_ms
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.placeholder(tf.float32, [2])
        (late,) = waiting([given], waits)
        (gradient,) = tf.gradients(tf.square(late), given)
        for fetched, expected, wait_ms in (
            (late, [3.0, 4.0], waits.forward_ms),
            (gradient, [6.0, 8.0], waits.forward_ms + waits.backward_ms),
        ):
            started = time.monotonic()
            np.testing.assert_array_equal(session.run(fetched, {given: [3.0, 4.0]}), expected)
            assert 1000 * (time.monotonic() - started) >= wait_ms
