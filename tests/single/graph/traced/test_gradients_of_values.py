"""Gradients of looked-up rows and of copies of a variable are aggregated like gradients of the variable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.errors import CaptureError, PlanError
from tests.single.graph.traced.untouched_steps import (
    ROWS,
    WIDTH,
    Build,
    captured,
    largest_difference,
    loss_of,
    table,
    weights,
)

Made = tuple[Any, list[tf.Variable]]


def rows() -> Made:
    """The gradient of rows updates their table, beside a gradient of a variable."""
    matrix, embedding = weights(), table()

    @tf.function
    def step(given: Any) -> Any:
        found = tf.gather(embedding, given["ids"])
        with tf.GradientTape() as tape:
            tape.watch(found)
            loss = loss_of(found, matrix, given)
        of_rows, of_matrix = tape.gradient(loss, [found, matrix])
        embedding.scatter_sub(tf.IndexedSlices(0.1 * of_rows, given["ids"]))
        matrix.assign_sub(0.1 * of_matrix)
        return loss

    return step, [matrix, embedding]


def rows_alone() -> Made:
    """No other gradient is recorded, and the ids reach the update in another form."""
    embedding = table()

    @tf.function
    def step(given: Any) -> Any:
        found = tf.nn.embedding_lookup(embedding, given["ids"])
        with tf.GradientTape() as tape:
            tape.watch(found)
            loss = loss_of(found, np.eye(WIDTH), given)
        ids = tf.reshape(tf.cast(given["ids"], tf.int32), [-1])
        embedding.scatter_sub(tf.IndexedSlices(0.1 * tape.gradient(loss, found), ids))
        return loss

    return step, [embedding]


def pairs_of_rows() -> Made:
    """Ids with two dimensions, whose rows the update flattens."""
    embedding = table()

    @tf.function
    def step(given: Any) -> Any:
        found = tf.gather(tf.convert_to_tensor(embedding), given["pairs"])
        with tf.GradientTape() as tape:
            tape.watch(found)
            loss = loss_of(tf.reduce_sum(found, axis=1), np.eye(WIDTH), given)
        gradient = tf.reshape(tape.gradient(loss, found), [-1, WIDTH])
        embedding.scatter_sub(tf.IndexedSlices(0.1 * gradient, tf.reshape(given["pairs"], [-1])))
        return loss

    return step, [embedding]


def two_lookups() -> Made:
    """Two lookups in one table, and momentum by hand that decays all rows."""
    embedding, velocity = table(), tf.Variable(tf.zeros([ROWS, WIDTH], tf.float64), name="velocity", trainable=False)

    @tf.function
    def step(given: Any) -> Any:
        one, two = tf.gather(embedding, given["ids"]), tf.gather(embedding, given["pairs"][:, 0])
        with tf.GradientTape() as tape:
            tape.watch([one, two])
            loss = loss_of(one * two, np.eye(WIDTH), given)
        of_one, of_two = tape.gradient(loss, [one, two])
        velocity.assign(0.9 * velocity)
        velocity.scatter_add(tf.IndexedSlices(of_one, given["ids"]))
        velocity.scatter_add(tf.IndexedSlices(of_two, given["pairs"][:, 0]))
        embedding.assign_sub(0.1 * velocity)
        return loss

    return step, [embedding, velocity]


def copy_of_weights() -> Made:
    """The gradient of a copy."""
    matrix, other = weights(), weights("other")

    @tf.function
    def step(given: Any) -> Any:
        copy = tf.identity(matrix)
        with tf.GradientTape() as tape:
            tape.watch(copy)
            loss = loss_of(1.0, tf.matmul(copy, other), given)
        of_copy, of_other = tape.gradient(loss, [copy, other])
        matrix.assign_sub(0.01 * of_copy)
        other.assign_sub(0.01 * of_other)
        return loss

    return step, [matrix, other]


def computed_copies() -> Made:
    """Values that are computed from one variable each; the gradient of one of them is an IndexedSlices."""
    matrix, embedding = weights(), table()

    @tf.function
    def step(given: Any) -> Any:
        copy, half = 1.0 * embedding, tf.transpose(matrix) / 2.0
        with tf.GradientTape() as tape:
            tape.watch([copy, half])
            loss = loss_of(tf.gather(copy, given["ids"]), half, given)
        of_copy, of_half = tape.gradient(loss, [copy, half])
        embedding.scatter_sub(tf.IndexedSlices(0.1 * of_copy.values, of_copy.indices))
        matrix.assign_sub(0.1 * tf.transpose(of_half))
        return loss

    return step, [matrix, embedding]


def counted_slices() -> Made:
    """The update counts the rows of a gradient, whose number differs between a rank and all ranks."""
    embedding = table()

    @tf.function
    def step(given: Any) -> Any:
        copy = tf.convert_to_tensor(embedding)
        with tf.GradientTape() as tape:
            tape.watch(copy)
            loss = loss_of(tf.reduce_sum(tf.gather(copy, given["pairs"]), axis=1), np.eye(WIDTH), given)
        slices = tape.gradient(loss, copy)
        ones = tf.ones([tf.shape(slices.indices)[0], WIDTH], tf.float64)
        embedding.scatter_sub(tf.IndexedSlices(0.1 * slices.values * ones, slices.indices))
        return loss

    return step, [embedding]


def rows_added_up() -> Made:
    """The update makes a whole table of the rows' gradient."""
    embedding = table()

    @tf.function
    def step(given: Any) -> Any:
        found = tf.gather(embedding, given["ids"])
        with tf.GradientTape() as tape:
            tape.watch(found)
            loss = loss_of(found, np.eye(WIDTH), given)
        embedding.assign_sub(0.1 * tf.math.unsorted_segment_sum(tape.gradient(loss, found), given["ids"], ROWS))
        return loss

    return step, [embedding]


def by_tf_gradients() -> Made:
    """tf.gradients in a compiled function, of a variable and of rows."""
    matrix, embedding = weights(), table()

    @tf.function
    def step(given: Any) -> Any:
        found = tf.gather(embedding, given["ids"])
        loss = loss_of(found, matrix, given)
        of_rows, of_matrix = tf.gradients(loss, [found, matrix])
        embedding.scatter_sub(tf.IndexedSlices(0.1 * of_rows, given["ids"]))
        matrix.assign_sub(0.1 * of_matrix)
        return loss

    return step, [matrix, embedding]


def adversarial() -> Made:
    """The gradient of rows only moves the rows for a second forward pass."""
    matrix, embedding = weights(), table()

    @tf.function
    def step(given: Any) -> Any:
        with tf.GradientTape() as outer:
            found = tf.gather(embedding, given["ids"])
            with tf.GradientTape() as tape:
                tape.watch(found)
                loss = loss_of(found, matrix, given)
            moved = found + 0.1 * tf.stop_gradient(tf.sign(tape.gradient(loss, found)))
            total = loss + loss_of(moved, matrix, given)
        of_table, of_matrix = outer.gradient(total, [embedding, matrix])
        embedding.scatter_sub(tf.IndexedSlices(0.1 * of_table.values, of_table.indices))
        matrix.assign_sub(0.1 * of_matrix)
        return loss

    return step, [matrix, embedding]


@pytest.mark.parametrize(
    "build",
    [
        rows,
        rows_alone,
        pairs_of_rows,
        two_lookups,
        copy_of_weights,
        computed_copies,
        counted_slices,
        rows_added_up,
        by_tf_gradients,
        adversarial,
    ],
)
def test_two_ranks_are_one_device_with_both_batches(build: Build) -> None:
    assert largest_difference(build) < 1e-13


def test_repeated_rows_are_merged() -> None:
    """Adagrad by hand on the rows of a step: the reference adds up equal ids first."""
    found: dict[str, Any] = {}

    def build(merged: bool = False) -> Made:
        embedding = table()
        squares = tf.Variable(tf.ones([ROWS, WIDTH], tf.float64), name="squares", trainable=False)

        @tf.function
        def step(given: Any) -> Any:
            looked_up = tf.gather(embedding, given["ids"])
            with tf.GradientTape() as tape:
                tape.watch(looked_up)
                loss = loss_of(looked_up, np.eye(WIDTH), given)
            gradient, ids = tape.gradient(loss, looked_up), given["ids"]
            if merged:
                ids, place = tf.unique(ids)
                gradient = tf.math.unsorted_segment_sum(gradient, place, tf.size(ids))
            squares.scatter_add(tf.IndexedSlices(tf.square(gradient), ids))
            scale = tf.math.rsqrt(tf.gather(squares, ids))
            embedding.scatter_sub(tf.IndexedSlices(0.1 * gradient * scale, ids))
            return loss

        found[str(merged)] = step
        return step, [embedding, squares]

    # The captured step does not merge, but ranks do; plain TensorFlow merges by hand.
    calls = iter([True, False])
    assert largest_difference(lambda: build(next(calls))) < 1e-13
    calls = iter([False, False])
    assert largest_difference(lambda: build(next(calls))) > 1e-4


def stacked_copies(**options: Any) -> Made:
    """The gradient of a value that is neither rows nor a copy."""
    matrix, other = weights(**options), weights("other")

    def step(given: Any) -> Any:
        twice = tf.stack([matrix, matrix])
        with tf.GradientTape() as tape:
            tape.watch(twice)
            loss = loss_of(1.0, tf.matmul(twice[0] + twice[1], other), given)
        of_twice, of_other = tape.gradient(loss, [twice, other])
        matrix.assign_sub(0.01 * tf.reduce_sum(of_twice, axis=0))
        other.assign_sub(0.01 * of_other)
        return loss

    return step, [matrix, other]


def by_hand() -> Made:
    """A gradient that the step computes by its own formula."""
    matrix, other = weights(), weights("other")

    def step(given: Any) -> Any:
        with tf.GradientTape() as tape:
            error = tf.matmul(tf.matmul(given["x"], matrix), other)
            loss = tf.reduce_mean(tf.square(error))
        other.assign_sub(0.01 * tape.gradient(loss, other))
        matrix.assign_sub(0.01 * tf.matmul(given["x"], error, transpose_a=True))
        return loss

    return step, [matrix, other]


def in_a_loop() -> Made:
    """A loop updates the weights with examples."""
    matrix, other = weights(), weights("other")

    @tf.function
    def step(given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(1.0, tf.matmul(matrix, other), given)
        other.assign_sub(0.01 * tape.gradient(loss, other))
        for _ in tf.range(2):
            matrix.assign_sub(0.01 * tf.matmul(given["x"], given["x"], transpose_a=True))
        return loss

    return step, [matrix, other]


@pytest.mark.parametrize("build", [stacked_copies, lambda: stacked_copies(trainable=False), by_hand, in_a_loop])
def test_a_variable_that_each_rank_would_train_alone_is_refused(build: Build) -> None:
    with pytest.raises(PlanError, match=r"variable «weights» is updated by .* each rank would train its own copy"):
        captured(build)


def test_ids_that_an_update_counts_are_refused() -> None:
    def build() -> Made:
        embedding = table()

        def step(given: Any) -> Any:
            found = tf.gather(embedding, given["ids"])
            with tf.GradientTape() as tape:
                tape.watch(found)
                loss = loss_of(found, np.eye(WIDTH), given)
            scale = tf.cast(given["ids"], tf.float64)[:, None]
            embedding.scatter_sub(tf.IndexedSlices(0.1 * scale * tape.gradient(loss, found), given["ids"]))
            return loss

        return step, [embedding]

    with pytest.raises((CaptureError, PlanError), match="ids"):
        captured(build)


def statistic(declared: Any, *, is_read: bool, trainable: bool) -> Made:
    """An average of examples, which the loss reads or not."""
    matrix = weights()
    average = tf.Variable(np.ones(WIDTH), name="average", trainable=trainable, aggregation=declared)

    def step(given: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(average if is_read else 1.0, matrix, given)
        matrix.assign_sub(0.01 * tape.gradient(loss, matrix))
        average.assign(0.9 * average + 0.1 * tf.reduce_mean(given["x"], axis=0))
        return loss

    return step, [matrix, average]


NONE, MEAN = tf.VariableAggregation.NONE, tf.VariableAggregation.MEAN


@pytest.mark.parametrize(
    ("declared", "is_read", "trainable"), [(NONE, False, True), (NONE, True, False), (MEAN, True, True)]
)
def test_a_statistic_is_not(declared: Any, is_read: bool, trainable: bool) -> None:
    captured(lambda: statistic(declared, is_read=is_read, trainable=trainable))


def test_a_statistic_that_the_loss_reads_and_that_counts_as_trained_is() -> None:
    with pytest.raises(PlanError, match=r"«average».*declare aggregation=tf.VariableAggregation.MEAN"):
        captured(lambda: statistic(NONE, is_read=True, trainable=True))
