"""Which divisors count in training steps that a script writes: those with which two replicas are shown to write what
one device writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers

from parallax_runner.graph.traced import made_up_values, step_graph
from tests.single.graph.traced.step_decisions import (
    FIRST,
    GLOBAL,
    IS_NEITHER,
    IS_SUM,
    IS_SUMMED,
    OTHER_TARGET,
    ROWS,
    TARGET,
    Marks,
    check,
    decided,
)


def step(
    loss: Callable[[Any, Any], Any], process: Callable[..., Any] | None = None, apply: Any = None, rows: int = ROWS
) -> Any:
    """A step with a tape. `loss` takes the squared errors and the batch. `process` takes the gradients, and the batch.
    `apply` takes the gradients and the variables."""
    table = tf.Variable(np.random.default_rng(7).normal(size=(rows, 3)).astype("float32"), name="table")
    weights = tf.Variable(np.random.default_rng(8).normal(size=(3, 1)).astype("float32"), name="weights")
    optimizer = optimizers.SGD(0.1)
    optimizer.build([table, weights])

    @tf.function
    def train(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            words = tf.reduce_mean(tf.nn.embedding_lookup(table, batch["ids"]), axis=1)
            predicted = tf.matmul(tf.tanh(words * batch["x"]), weights)[:, 0]
            value = loss(tf.square(predicted - batch["y"]), batch)
        slopes = tape.gradient(value, [table, weights])
        slopes = slopes if process is None else process(slopes, batch)
        (apply or optimizer.apply)(slopes, [table, weights])
        return tf.reduce_mean(value)

    return train


def total(errors: Any, batch: Any) -> Any:
    return tf.reduce_sum(errors)


def examples(batch: Any) -> Any:
    return tf.cast(tf.shape(batch["x"])[0], tf.float32)


def masked(errors: Any, batch: Any) -> Any:
    """A mean that counts the first words by hand."""
    is_valid = tf.cast(batch["ids"][:, 0] > 20, tf.float32)
    return tf.reduce_sum(errors * is_valid) / tf.reduce_sum(is_valid)


def divided(slopes: Any, batch: Any, by: Any = None) -> Any:
    """Divides the gradients by the number of examples, or by another number."""
    by = examples(batch) if by is None else by
    return [tf.IndexedSlices(slopes[0].values / by, slopes[0].indices, slopes[0].dense_shape), slopes[1] / by]


def clipped(slopes: Any, batch: Any) -> Any:
    return tf.clip_by_global_norm(slopes, 0.05)[0]


def each_clipped(slopes: Any, batch: Any) -> Any:
    return [tf.clip_by_norm(one, 0.05) for one in slopes]


def subtracted(slopes: Any, variables: Any) -> None:
    """An update by hand."""
    table, weights = variables
    table.scatter_sub(tf.IndexedSlices(0.1 * slopes[0].values, slopes[0].indices))
    weights.assign_sub(0.1 * slopes[1])


def in_a_branch(slopes: Any, variables: Any) -> None:
    """An update that the trial does not see."""
    if tf.reduce_sum(slopes[1]) < 1000.0:
        subtracted(slopes, variables)


OF_TAPES: dict[str, tuple[Callable[[], Any], Marks, list[str]]] = {
    "more-mean": (lambda: step(lambda e, b: tf.reduce_mean(e)), [], []),
    "sum": (lambda: step(total), [TARGET], [IS_SUMMED]),
    "more-each": (lambda: step(lambda e, b: e), [TARGET], [IS_SUMMED]),
    "more-sum/constant": (lambda: step(lambda e, b: total(e, b) / GLOBAL), [TARGET], [IS_SUMMED]),
    "average loss": (
        lambda: step(lambda e, b: tf.nn.compute_average_loss(e, global_batch_size=int(GLOBAL))),
        [FIRST],
        [],
    ),
    "more-average loss of the batch": (lambda: step(lambda e, b: tf.nn.compute_average_loss(e)), [], []),
    "more-average loss + constant": (
        lambda: step(lambda e, b: tf.nn.compute_average_loss(e, global_batch_size=int(GLOBAL)) + 0.5),
        [FIRST],
        [],
    ),
    "more-sum/shape": (lambda: step(lambda e, b: total(e, b) / examples(b)), [], []),
    "gradients/shape": (lambda: step(total, divided), [], []),
    "more-gradients/constant": (lambda: step(total, lambda s, b: divided(s, b, GLOBAL)), [TARGET], [IS_SUMMED]),
    "clipped": (lambda: step(total, clipped), [TARGET], [IS_SUMMED]),
    "more-each clipped": (lambda: step(total, each_clipped), [TARGET], [IS_SUMMED]),
    "more-gradients/shape, clipped": (lambda: step(total, lambda s, b: clipped(divided(s, b), b)), [], []),
    # A clipped gradient does not depend on the number of examples before it is divided by it.
    "clipped, gradients/shape": (lambda: step(total, lambda s, b: divided(clipped(s, b), b)), [], [IS_SUM]),
    "by hand": (lambda: step(total, apply=subtracted), [TARGET], [IS_SUMMED]),
    "more-by hand, gradients/shape": (lambda: step(total, divided, subtracted), [], []),
    "in a branch": (lambda: step(total, apply=in_a_branch), [], [IS_SUM]),
    "more-norm": (lambda: step(lambda e, b: tf.sqrt(tf.reduce_sum(e))), [], [IS_NEITHER]),
    # Small gradients are compared with gradients, not with the numbers of rows.
    "small norm": (lambda: step(lambda e, b: 1e-9 * tf.sqrt(tf.reduce_sum(e))), [], [IS_NEITHER]),
    "own mask": (lambda: step(masked), [], [IS_NEITHER]),
}


@pytest.mark.parametrize("case", OF_TAPES)
def test_a_step_with_a_tape(case: str) -> None:
    make, marks, notes = OF_TAPES[case]
    check(decided(make), marks, notes)


def test_gradients_that_are_divided_by_a_replica_are_not_exact_for_unequal_replicas() -> None:
    check(decided(lambda: step(total, divided), is_uneven=True), [], ["is not a mean over examples"])
    check(decided(lambda: step(total, clipped), is_uneven=True), [TARGET], [IS_SUMMED])


def two_losses(second: Callable[[Any], Any], *, shared: bool = False) -> Any:
    """Two losses of one tape, for two variables, or both for the same variable."""
    first, other = tf.Variable([0.5, 0.2, 0.1], name="first"), tf.Variable([0.4, 0.3, 0.1], name="second")

    def train(batch: dict[str, Any]) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            one = tf.reduce_mean(tf.square(tf.linalg.matvec(batch["x"], first) - batch["y"]))
            two = second(tf.linalg.matvec(batch["x"], first if shared else other))
        slope, other_slope = tape.gradient(one, first), tape.gradient(two, first if shared else other)
        if shared:
            first.assign_sub(slope + other_slope)
        else:
            first.assign_sub(slope)
            other.assign_sub(other_slope)
        return one + two

    return train


def summed(values: Any) -> Any:
    return tf.reduce_sum(tf.square(values))


def test_each_loss_of_a_step_is_decided_alone() -> None:
    check(decided(lambda: two_losses(summed)), [OTHER_TARGET], [IS_SUMMED])
    check(decided(lambda: two_losses(lambda v: tf.sqrt(summed(v)))), [], [IS_NEITHER])


def test_losses_whose_gradients_are_added_are_decided_together() -> None:
    check(decided(lambda: two_losses(summed, shared=True)), [OTHER_TARGET], [IS_SUMMED])


def test_a_loss_with_gradients_for_two_sets_of_variables_has_one_number() -> None:
    def make() -> Any:
        first, other = tf.Variable([0.5, 0.2, 0.1], name="first"), tf.Variable([0.4, 0.3, 0.1], name="second")

        def train(batch: dict[str, Any]) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                loss = summed(tf.linalg.matvec(batch["x"], first * other))
            slope, other_slope = tape.gradient(loss, first), tape.gradient(loss, other)
            first.assign_sub(slope)
            other.assign_sub(other_slope)
            return loss

        return train

    check(decided(make), [TARGET, TARGET], [IS_SUMMED])


def test_gradients_that_a_tape_starts_with() -> None:
    """They are divided as well, and a mean of their products is a mean."""

    def make() -> Any:
        weights = tf.Variable([0.5, 0.2, 0.1], name="weights")

        def train(batch: dict[str, Any]) -> Any:
            with tf.GradientTape() as tape:
                errors = tf.square(tf.linalg.matvec(batch["x"], weights))
            weights.assign_sub(tape.gradient(errors, weights, output_gradients=tf.fill(tf.shape(errors), 1 / GLOBAL)))
            return tf.reduce_mean(errors)

        return train

    check(decided(make), [TARGET], [IS_SUMMED])


def test_micro_batches_of_a_step() -> None:
    """Two means over parts of the batch, whose gradients are added: each loss alone is no mean of the halves."""

    def make() -> Any:
        weights = tf.Variable([0.5, 0.2, 0.1], name="weights")

        def train(batch: dict[str, Any]) -> Any:
            slopes = []
            for x in tf.split(batch["x"], 2):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, weights)))
                slopes.append(tape.gradient(loss, weights))
            weights.assign_sub(tf.add_n(slopes) / 2)
            return loss

        return train

    check(decided(make), [], [])


def test_numbers_that_are_not_finite_prove_nothing() -> None:
    """The gradient of a root is not finite where the batch has zeros, and the loss is finite."""

    def loss(errors: Any, batch: Any) -> Any:
        is_valid = tf.cast(batch["x"][:, 0] != 0, tf.float32)
        return tf.reduce_sum(is_valid * errors) / tf.reduce_sum(is_valid) + 0.0 * tf.reduce_mean(tf.sqrt(0.0 * errors))

    check(decided(lambda: step(loss)), [], [IS_NEITHER])


@pytest.mark.parametrize(("large_bytes", "is_proven"), [(10_000, True), (100_000, False)])
def test_a_large_table_has_no_values(large_bytes: int, is_proven: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has 60,000 bytes. If it is not a large one, it has too many for the trial to hold."""
    monkeypatch.setattr(made_up_values, "LARGE_TABLE_BYTES", large_bytes)
    monkeypatch.setattr(step_graph, "MOST_BYTES", 20_000)
    marks, notes = ([TARGET], [IS_SUMMED]) if is_proven else ([], [IS_SUM])
    check(decided(lambda: step(total, clipped, rows=5000)), marks, notes)
