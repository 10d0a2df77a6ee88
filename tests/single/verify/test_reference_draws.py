"""Random ops and iterators in the reference advance once a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.capture import capture
from parallax_runner.graph.seeds import derive_seeds
from tests.single.verify.reference_cases import (
    WIDTH,
    Plain,
    assert_equal,
    captured,
    distinct,
    model,
    started,
)


def noisy(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """Dropout in the forward pass; the mask is used by an update op, too, so that a second draw would be seen."""
    matrix = tf.get_variable("matrix", initializer=np.random.RandomState(0).normal(size=(WIDTH, WIDTH)))
    seen = tf.get_variable("seen", shape=(WIDTH,), dtype=tf.float64, initializer=tf.zeros_initializer, trainable=False)
    mask = tf.cast(tf.random.uniform((WIDTH,), dtype=tf.float64, seed=5) < 0.5, tf.float64)
    mask += tf.random.uniform((), dtype=tf.float64, seed=6)
    loss = tf.reduce_mean((tf.matmul(features["target"], matrix) * mask - features["target"]) ** 2)
    (gradient,) = tf.gradients(loss, [matrix])
    apply = tf.train.GradientDescentOptimizer(0.5).apply_gradients([(gradient * mask, matrix)])
    with tf.control_dependencies([apply]):
        train_op = tf.group(apply, tf.assign_add(seen, mask))
    return {"loss": loss, "train_op": train_op}


def test_random_ops_are_drawn_once_a_step() -> None:
    single = captured(noisy)
    plain = Plain(single)
    with started(single) as reference:
        for step in range(5):
            assert reference.step([distinct(step)]) == pytest.approx([plain.step(distinct(step))], abs=1e-12)
            assert_equal(reference.values(), plain.values())


def test_ranks_draw_what_their_seeds_say() -> None:
    single = captured(noisy)

    def seeds(graph_def: tf.GraphDef, rank: int) -> tf.GraphDef:
        initializers = [variable.initializer for variable in single.variables]
        return derive_seeds(graph_def, seed=7, rank=rank, first_step=0, initializers=initializers)

    data = distinct(0)
    plain = [Plain(single, seeds(single.meta_graph.graph_def, rank)) for rank in range(2)]
    expected = [session.step(data) for session in plain]
    assert expected[0] != expected[1]
    with started(single, ranks=2, seeds=seeds) as reference:
        assert reference.step([data, data]) == pytest.approx(expected, abs=1e-12)
        # Each rank's own mask was added to its own counter, and post-processing used the rank's own mask.
        np.testing.assert_array_equal(reference.values()["seen"], plain[0].values()["seen"])
    with started(single, ranks=2) as reference:
        first, second = reference.step([data, data])
        assert first == second


def test_a_draw_that_only_post_processing_needs() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        matrix = tf.get_variable("matrix", initializer=np.eye(WIDTH))
        loss = tf.reduce_mean((tf.matmul(features["target"], matrix) - 1) ** 2)
        (gradient,) = tf.gradients(loss, [matrix])
        gradient += tf.random.normal(tf.shape(gradient), dtype=tf.float64, seed=3)
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.5).apply_gradients([(gradient, matrix)])}

    single = captured(build)
    plain = Plain(single)
    with started(single) as reference:
        for step in range(4):
            reference.step([distinct(step)])
            plain.step(distinct(step))
            assert_equal(reference.values(), plain.values())


@pytest.mark.parametrize("iterator", ["one_shot", "initializable"])
def test_an_iterator_in_the_graph_advances_once_a_step(iterator: str) -> None:
    def build(_: dict[str, tf.Tensor]) -> dict[str, Any]:
        dataset = tf.data.Dataset.from_tensor_slices(np.arange(1.0, 9.0))
        make = tf.data.make_one_shot_iterator if iterator == "one_shot" else tf.data.make_initializable_iterator
        element = make(dataset).get_next()
        weight = tf.get_variable("weight", initializer=np.float64(0))
        total = tf.get_variable("total", initializer=np.float64(0), trainable=False)
        loss = weight * element
        apply = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
        with tf.control_dependencies([apply]):
            return {"loss": loss, "train_op": tf.group(apply, tf.assign_add(total, element))}

    single = capture(build, {}, seed=1)
    with started(single, ranks=2) as reference:
        for step in range(1, 8):
            reference.step([{}, {}])
            # The sum of 1, 2, … step: every element is seen, and once.
            assert reference.values() == {"weight": -step * (step + 1) / 2, "total": step * (step + 1) / 2}
        reference.step([{}, {}])
        with pytest.raises(tf.errors.OutOfRangeError):
            reference.step([{}, {}])


def test_an_iterator_that_is_read_after_the_updates() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0]))
        outputs = model(sparse=False)(features)
        last = tf.get_variable("last", initializer=0.0, trainable=False)
        with tf.control_dependencies([outputs["train_op"]]):
            return {"loss": outputs["loss"], "train_op": tf.assign(last, iterator.get_next())}

    with started(captured(build)) as reference:
        for step in range(3):
            reference.step([distinct(step)])
            assert reference.values()["last"] == step + 1
