"""Which divisors count in training steps that a script writes: those with which two replicas are shown to write what
one device writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, losses, ops, optimizers

from parallax_runner.graph.single_device_graph import DivisorKind, SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.graph.traced.loss_divisors import with_sums
from parallax_runner.graph.traced.loss_notes import LossNotes, notes_on_losses
from tests.parallel import keras_models
from tests.parallel.cases import Case

BATCH, LENGTH, ROWS, GLOBAL = 8, 5, 50, 16.0
SHAPES: dict[str, Any] = {
    "ids": ((BATCH, LENGTH), "int32"),
    "x": ((BATCH, 3), "float32"),
    "y": ((BATCH,), "float32"),
}
DRAW = np.random.default_rng(3)
DATA = {
    "ids": DRAW.integers(1, ROWS, (64, LENGTH)).astype("int32"),
    "x": DRAW.normal(size=(64, 3)).astype("float32"),
    "y": DRAW.normal(size=64).astype("float32"),
}
# Marks by their kinds; negative numbers are targets of tapes.
ONE, COUNT = DivisorKind.ONE, DivisorKind.COUNT
TARGET, OTHER_TARGET, FIRST = (ONE, -1), (ONE, -2), (ONE, 0)
IS_SUM, IS_NEITHER, IS_SUMMED = "is a sum over examples", "is neither", "A step uses the sum of the gradients"
Marks = list[tuple[DivisorKind, int]]


def tried(single: SingleDeviceGraph, *, is_uneven: bool = False) -> LossNotes:
    return notes_on_losses(
        single.loss_trial,
        lambda size: {name: DATA[name][:size] for name in single.loss_trial.features},
        replicas=2,
        step_examples=2 * BATCH,
        exact=single.divisors,
        is_uneven=is_uneven,
    )


def decided(make: Callable[[], Any], *, is_uneven: bool = False, **options: Any) -> tuple[Marks, list[str]]:
    """Returns the marks that count, and the notes."""
    single = capture_step(make, SHAPES, seed=7, options=options)
    found = tried(single, is_uneven=is_uneven)
    return [(one.kind, one.term) for one in with_sums(single.divisors, found.sums)], list(found.notes)


def step(loss: Callable[[Any, Any], Any], process: Callable[..., Any] | None = None, apply: Any = None) -> Any:
    """A step with a tape. `loss` takes the squared errors and the batch. `process` takes the gradients, and the batch.
    `apply` takes the gradients and the variables."""
    table = tf.Variable(np.random.default_rng(7).normal(size=(ROWS, 3)).astype("float32"), name="table")
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
    "mean": (lambda: step(lambda e, b: tf.reduce_mean(e)), [], []),
    "sum": (lambda: step(total), [TARGET], [IS_SUMMED]),
    "each": (lambda: step(lambda e, b: e), [TARGET], [IS_SUMMED]),
    "sum/constant": (lambda: step(lambda e, b: total(e, b) / GLOBAL), [TARGET], [IS_SUMMED]),
    "average loss": (
        lambda: step(lambda e, b: tf.nn.compute_average_loss(e, global_batch_size=int(GLOBAL))),
        [FIRST],
        [],
    ),
    "average loss of the batch": (lambda: step(lambda e, b: tf.nn.compute_average_loss(e)), [], []),
    "average loss + constant": (
        lambda: step(lambda e, b: tf.nn.compute_average_loss(e, global_batch_size=int(GLOBAL)) + 0.5),
        [FIRST],
        [],
    ),
    "sum/shape": (lambda: step(lambda e, b: total(e, b) / examples(b)), [], []),
    "gradients/shape": (lambda: step(total, divided), [], []),
    "gradients/constant": (lambda: step(total, lambda s, b: divided(s, b, GLOBAL)), [TARGET], [IS_SUMMED]),
    "clipped": (lambda: step(total, clipped), [TARGET], [IS_SUMMED]),
    "each clipped": (lambda: step(total, each_clipped), [TARGET], [IS_SUMMED]),
    "gradients/shape, clipped": (lambda: step(total, lambda s, b: clipped(divided(s, b), b)), [], []),
    # A clipped gradient does not depend on the number of examples before it is divided by it.
    "clipped, gradients/shape": (lambda: step(total, lambda s, b: divided(clipped(s, b), b)), [], [IS_SUM]),
    "by hand": (lambda: step(total, apply=subtracted), [TARGET], [IS_SUMMED]),
    "by hand, gradients/shape": (lambda: step(total, divided, subtracted), [], []),
    "in a branch": (lambda: step(total, apply=in_a_branch), [], [IS_SUM]),
    "norm": (lambda: step(lambda e, b: tf.sqrt(tf.reduce_sum(e))), [], [IS_NEITHER]),
    "own mask": (lambda: step(masked), [], [IS_NEITHER]),
}


def check(found: tuple[Marks, list[str]], marks: Marks, notes: list[str]) -> None:
    assert found[0] == marks
    assert len(found[1]) == len(notes)
    for note, words in zip(found[1], notes, strict=True):
        assert words in note
        assert (IS_SUMMED in note) == (words == IS_SUMMED)


@pytest.mark.parametrize("case", OF_TAPES)
def test_a_step_with_a_tape(case: str) -> None:
    make, marks, notes = OF_TAPES[case]
    check(decided(make), marks, notes)


def test_gradients_that_are_divided_by_a_replica_are_not_exact_for_unequal_replicas() -> None:
    check(decided(lambda: step(total, divided), is_uneven=True), [], [IS_SUM])
    check(decided(lambda: step(total, clipped), is_uneven=True), [TARGET], [IS_SUMMED])


class Trains(keras.Model):
    """A model with its own `train_step`. `loss_of` takes the model, x, y and the predictions."""

    loss_of: Callable[..., Any] = staticmethod(lambda model, x, y, predicted: model.compute_loss(x, y, predicted))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = self.loss_of(self, x, y, self(x, training=True))
        slopes = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(slopes, self.trainable_variables, strict=True))
        return {"loss": loss}


class Halving(keras.Model):
    """A model with its own `compute_loss`."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(x, y, y_pred, *args, **kwargs) / 2


class AddsSum(layers.Layer):
    """Adds a sum over examples to the loss."""

    supports_masking = True

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * ops.sum(ops.square(x)))
        return x


class OfEachWord(losses.Loss):
    """One value for each word. All words of an example have the same label."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.square(y_pred - ops.reshape(y_true, (-1, 1)))


class LastOnly(layers.Layer):
    """Removes the last dimension and keeps the mask."""

    supports_masking = True

    def call(self, x: Any) -> Any:
        return x[..., 0]


def words(
    kind: type[keras.Model], loss_of: Any = None, *, inner: Any = None, reduction: Any = "mean", **table: Any
) -> Any:
    """A model with a masked value for each word."""
    ids = keras.Input((LENGTH,), dtype="int32", name="ids")
    found = layers.Embedding(ROWS, 3, mask_zero=True, **table)(ids)
    found = layers.Dense(1)(found if inner is None else inner(found))
    made = kind({"ids": ids}, LastOnly()(found))
    if loss_of is not None:
        made.loss_of = loss_of
    made.compile(optimizers.SGD(0.1), OfEachWord(reduction=reduction))
    return made


def keras_loss(model: Any, x: Any, y: Any, predicted: Any) -> Any:
    return model.compute_loss(x, y, predicted)


MASK = (COUNT, 0)
NAMED = "is masked"
OF_MODELS: dict[str, tuple[Callable[[], Any], Marks, list[str]]] = {
    "masked": (lambda: words(Trains), [MASK], []),
    "own compute_loss": (lambda: words(Halving), [MASK], []),
    "factor and regularizer": (
        lambda: words(Trains, lambda *given: 3.0 * keras_loss(*given), embeddings_regularizer="l2"),
        [MASK],
        [],
    ),
    "exponential": (lambda: words(Trains, lambda *given: tf.exp(keras_loss(*given))), [], [NAMED]),
    "sum": (lambda: words(Trains, reduction="sum"), [FIRST], []),
    "sum/constant": (lambda: words(Trains, lambda *given: keras_loss(*given) / GLOBAL, reduction="sum"), [FIRST], []),
    "no reduction": (
        lambda: words(Trains, lambda m, x, y, p: tf.reduce_sum(m.loss(y, p)) / GLOBAL, reduction=None),
        [TARGET],
        [IS_SUMMED],
    ),
    "added sum": (lambda: words(Trains, inner=AddsSum()), [FIRST, (COUNT, 1)], []),
    "added sum and a mean of each": (
        lambda: words(
            Trains, lambda m, x, y, p: tf.reduce_mean(m.loss(y, p)) + sum(m.losses), inner=AddsSum(), reduction=None
        ),
        [FIRST],
        [],
    ),
}


@pytest.mark.parametrize("case", OF_MODELS)
def test_a_model_with_its_own_step(case: str) -> None:
    make, marks, notes = OF_MODELS[case]
    found = decided(make, labels="y")
    check((sorted(found[0], key=str), found[1]), sorted(marks, key=str), notes)


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


@pytest.mark.parametrize("name", ["masked_step", "from_mirrored", "summed", "own_step"])
def test_the_steps_of_the_equivalence_matrix(name: str) -> None:
    """A trial shows the marks that the matrix takes to count."""
    case = Case(model=name, optimizer="sgd", kind="keras" if name in ("masked_step", "own_step") else "tape")
    model = keras_models.MODELS[name]
    features = {one: keras_models.FEATURES[one] for one in model.features}
    shapes = {one: ((keras_models.BATCH, *shape), dtype) for one, (shape, dtype) in features.items()}
    with keras_models.as_case(case):
        captured = capture_step(lambda: keras_models.make(case)[0], shapes, seed=7, options=model.options)
    parts = [keras_models.batch(case, number, rank=0) for number in range(4)]
    whole = {key: np.concatenate([one[key] for one in parts]) for key in parts[0]}
    with keras_models.as_case(case):
        found = notes_on_losses(
            captured.loss_trial,
            lambda size: {key: array[:size] for key, array in whole.items()},
            replicas=2,
            step_examples=2 * keras_models.BATCH,
            exact=captured.divisors,
        )
    assert found.sums == keras_models.SHOWN.get(name, set())


class WhileTraining(layers.Layer):
    """Adds a loss only in training, so the trial counts other losses than the captured step."""

    supports_masking = True

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(ops.mean(ops.square(x)))
        return x


def test_losses_that_only_training_has_leave_the_notes() -> None:
    check(decided(lambda: words(Trains, inner=WhileTraining()), labels="y"), [], [NAMED])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_step_that_computes_in_16_bits(policy: str) -> None:
    def make() -> Any:
        inner = layers.Dense(4, dtype=policy)
        made = words(Trains, lambda m, x, y, p: m.optimizer.scale_loss(m.loss(y, p)), inner=inner, reduction="sum")
        made.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.1)), made.loss)
        return made

    check(decided(make, labels="y"), [FIRST], [])


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
