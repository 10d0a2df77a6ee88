"""N ranks of the reference are one plain session on the concatenated batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.single.verify.reference_cases import (
    EXAMPLES,
    OPTIMIZERS,
    ROWS,
    WIDTH,
    Batch,
    Plain,
    assert_equal,
    batch,
    captured,
    distinct,
    joined,
    model,
    repeated,
    started,
)


@pytest.mark.parametrize("batches", [distinct, repeated])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ranks_are_a_plain_session_on_the_whole_batch(optimizer: str, batches: Callable[[int, int], Batch]) -> None:
    single = captured(model(optimizer=optimizer))
    plain = Plain(single)
    with started(single, ranks=3) as reference:
        for step in range(3):
            data = [batches(step, rank) for rank in range(3)]
            losses = reference.step(data)
            assert len(set(losses)) == 3
            assert np.mean(losses) == pytest.approx(plain.step(joined(data)), abs=1e-12)
            assert_equal(reference.values(), plain.values(), tolerance=1e-11)


def test_dense_gradients_are_clipped_after_aggregation() -> None:
    single = captured(model(sparse=False, clip=0.05))
    plain = Plain(single)
    data = [distinct(0, rank) for rank in range(2)]
    with started(single, ranks=2) as reference:
        reference.step(data)
        plain.step(joined(data))
        assert_equal(reference.values(), plain.values())


@pytest.mark.parametrize("average_sparse", [True, False])
def test_sparse_gradients_are_merged_over_ranks_and_averaged_or_summed(average_sparse: bool) -> None:
    single = captured(model(dense=False))
    table = Plain(single).values()["table"]
    data = [batch([3, 3, 7, 0], 1), batch([3, 7, 7, 5], 2)]
    gradient = np.zeros_like(table)
    for one in data:
        slopes = 2 * (0.5 * one["target"] + table[one["ids"]] - one["target"]) / EXAMPLES
        np.add.at(gradient, one["ids"], slopes / (2 if average_sparse else 1))
    with started(single, ranks=2, average_sparse=average_sparse) as reference:
        reference.step(data)
        np.testing.assert_allclose(reference.values()["table"], table - 0.5 * gradient, atol=1e-12)


def test_summing_leaves_dense_gradients_averaged() -> None:
    single = captured(model())
    data = [distinct(0, rank) for rank in range(2)]
    results = {}
    for average_sparse in (True, False):
        with started(single, ranks=2, average_sparse=average_sparse) as reference:
            reference.step(data)
            results[average_sparse] = reference.values()
    np.testing.assert_array_equal(results[True]["matrix"], results[False]["matrix"])
    assert not np.allclose(results[True]["table"], results[False]["table"])


def test_all_ranks_hold_the_same_variables_after_a_step() -> None:
    with started(captured(model(optimizer="adam")), ranks=2) as reference:
        reference.step([distinct(0, 0), distinct(0, 1)])
        data = distinct(1)
        first, second = reference.step([data, data])
        assert first == second


def test_a_table_that_is_looked_up_twice() -> None:
    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        table = tf.get_variable("table", initializer=np.random.RandomState(0).normal(size=(ROWS, WIDTH)))
        rows = tf.nn.embedding_lookup(table, features["ids"]) * tf.nn.embedding_lookup(table, features["ids"][::-1])
        loss = tf.reduce_mean((rows - features["target"]) ** 2)
        return {"loss": loss, "train_op": tf.train.AdagradOptimizer(0.5).minimize(loss)}

    single = captured(build)
    assert [gradient.indices is not None for gradient in single.gradients] == [True]
    plain = Plain(single)
    with started(single, ranks=2) as reference:
        # The rows of a batch meet their mirror image, so both ranks have the same ids to be equal to the whole.
        data = [repeated(0), repeated(0)]
        reference.step(data)
        plain.step(data[0])
        assert_equal(reference.values(), plain.values())


def test_a_raw_gradient_that_the_backward_pass_reads_too() -> None:
    """The gradient of `matrix` is applied, and penalised by way of `offset`: the penalty is of each rank's own."""

    def build(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        matrix = tf.get_variable("matrix", initializer=np.eye(WIDTH))
        offset = tf.get_variable("offset", initializer=np.zeros(WIDTH))
        loss = tf.reduce_mean((tf.matmul(features["target"], matrix) + offset - 1) ** 2)
        (first,) = tf.gradients(loss, [matrix])
        (second,) = tf.gradients(tf.reduce_sum(first**2), [offset])
        apply = tf.train.GradientDescentOptimizer(0.5).apply_gradients([(first, matrix), (second, offset)])
        return {"loss": loss, "train_op": apply}

    single = captured(build)
    data = [distinct(0, rank) for rank in range(2)]
    each = []
    for one in data:
        plain = Plain(single)
        plain.step(one)
        each.append(plain.values())
    with started(single, ranks=2) as reference:
        reference.step(data)
        assert_equal(reference.values(), {name: (each[0][name] + each[1][name]) / 2 for name in each[0]})
