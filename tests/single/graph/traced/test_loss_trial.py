"""Which losses are found not to be means over examples: Keras models and training steps of each kind, none of which
says so in a batch of real examples alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, losses, ops

from parallax_runner.graph.traced import loss_graph
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.graph.traced.loss_kinds import LossKind
from parallax_runner.graph.traced.loss_notes import differing_terms, notes_on_losses
from parallax_runner.graph.traced.loss_trial import LossTrial
from tests.parallel import keras_models
from tests.parallel.cases import Case

BATCH, LENGTH, ROWS = 8, 5, 50
SHAPES: dict[str, Any] = {
    "ids": ((BATCH, LENGTH), "int32"),
    "x": ((BATCH, 3), "float32"),
    "y": ((BATCH, 1), "float32"),
    "z": ((BATCH, LENGTH, 1), "float32"),
    "weight": ((BATCH,), "float32"),
}
DRAW = np.random.default_rng(3)
# No id is 0, so a mask of ids is full. Equal weights hide that a loss divides by their sum.
DATA = {
    "ids": DRAW.integers(1, ROWS, (64, LENGTH)).astype("int32"),
    "x": DRAW.normal(size=(64, 3)).astype("float32"),
    "y": DRAW.normal(size=(64, 1)).astype("float32"),
    "z": DRAW.normal(size=(64, LENGTH, 1)).astype("float32"),
    "weight": np.ones(64, "float32"),
}
Added = Callable[[Any], Any]


def trial_of(make: Callable[[], Any], **options: Any) -> LossTrial:
    """Returns the trial of a model with these labels and weights, or of a step."""
    names = {"ids", "x", *tf.nest.flatten(options or "y")}
    shapes = {name: shape for name, shape in SHAPES.items() if name in names}
    found: LossTrial = capture_step(make, shapes, seed=7, options=options).loss_trial
    return found


def read(trial: LossTrial) -> Callable[[int], dict[str, np.ndarray]]:
    return lambda size: {name: DATA[name][:size] for name in trial.features}


def differing(trial: LossTrial, *, step_examples: int = 2 * BATCH) -> dict[str, LossKind]:
    """Returns the kinds of the terms that make a step of several replicas differ from one device, by name."""
    tried = trial.run(read(trial), step_examples)
    assert tried
    return {one.term.name: one.kind for loss in tried for one in differing_terms(loss)}


class Adds(layers.Layer):
    """Adds the loss that a function computes from the layer's input."""

    def __init__(self, loss: Added) -> None:
        super().__init__(name="adds")
        self.loss = loss

    def call(self, x: Any) -> Any:
        self.add_loss(self.loss(x))
        return x


def model(
    loss: Any = "mse",
    added: Added | None = None,
    kind: type[keras.Model] = keras.Model,
    rows: int = ROWS,
    inner: Any = None,
    **table: Any,
) -> Any:
    """A table whose rows for the words of an example are averaged, and two dense layers."""
    ids, x = keras.Input((LENGTH,), dtype="int32", name="ids"), keras.Input((3,), name="x")
    words = layers.Embedding(rows, 3, name="table", **table)(ids)
    found = layers.GlobalAveragePooling1D()(words) + x
    found = layers.Dense(4, activation="tanh")(found if added is None else Adds(added)(found))
    found = found if inner is None else inner(found)
    made = kind([ids, x], layers.Dense(1, name="out")(found))
    made.compile("adam", loss)
    return made


def each_word(loss: Any, **table: Any) -> Any:
    """A model whose output has a number for each word."""
    ids, x = keras.Input((LENGTH,), dtype="int32", name="ids"), keras.Input((3,), name="x")
    found = layers.Embedding(ROWS, 3, name="table", **table)(ids)
    made = keras.Model([ids, x], layers.Dense(1)(found))
    made.compile("sgd", loss)
    return made


def step(loss: Callable[[Any, Any, dict[str, Any]], Any]) -> Any:
    """A step with a tape. `loss` takes the predictions, the labels and the batch."""
    table = tf.Variable(np.random.default_rng(7).normal(size=(ROWS, 3)).astype("float32"), name="table")

    @tf.function
    def train(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            predicted = tf.reduce_sum(tf.nn.embedding_lookup(table, batch["ids"]), axis=[1, 2])
            value = loss(predicted, batch["y"][:, 0], batch)
        slope = tape.gradient(value, table)
        table.scatter_sub(tf.IndexedSlices(0.1 * slope.values, slope.indices))
        return tf.reduce_mean(value)

    return train


def summed(y_true: Any, y_pred: Any) -> Any:
    """A sum over examples in a loss function."""
    return ops.sum(ops.square(y_true - y_pred))


def squares(x: Any) -> Any:
    """A sum over examples of a layer's output."""
    return ops.sum(ops.square(x))


def among_positive(y_true: Any, y_pred: Any) -> Any:
    """A mean over the examples whose label is not 0."""
    counts = ops.cast(ops.not_equal(y_true, 0.0), "float32")
    return ops.sum(counts * ops.square(y_true - y_pred)) / ops.maximum(ops.sum(counts), 1.0)


def contrastive(y_true: Any, y_pred: Any) -> Any:
    """Each example against all others of the batch."""
    scores = ops.matmul(y_pred, ops.transpose(y_true))
    return losses.sparse_categorical_crossentropy(ops.arange(ops.shape(scores)[0]), scores, from_logits=True)


class Summing(keras.Model):
    """Adds a sum over examples in its own `compute_loss`."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(x, y, y_pred, *args, **kwargs) + 0.1 * ops.sum(ops.abs(y_pred))


class Dividing(keras.Model):
    """Divides the sum of its loss by the number of examples, in its own `compute_loss`."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(x, y, y_pred, *args, **kwargs) / ops.cast(ops.shape(y_pred)[0], "float32")


class Sampling(layers.Layer):
    """Adds noise in training and in evaluation, as a variational autoencoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(ops.shape(x), seed=self.seed_generator)


IN_COMPILE, ADDED = "the loss «{}» in compile", "a loss that the layer «adds» adds with add_loss"
SUM, NEITHER = LossKind.SUM, LossKind.NEITHER
OF_MODELS: dict[str, tuple[Callable[[], Any], dict[str, LossKind]]] = {
    "sum by reduction": (
        lambda: model(losses.MeanSquaredError(reduction="sum")),
        {IN_COMPILE.format("mean_squared_error"): SUM},
    ),
    "no reduction": (
        lambda: model(losses.MeanSquaredError(reduction=None)),
        {IN_COMPILE.format("mean_squared_error"): SUM},
    ),
    "sum in a function": (lambda: model(summed), {IN_COMPILE.format("summed"): SUM}),
    "own mask": (lambda: model(among_positive), {IN_COMPILE.format("among_positive"): NEITHER}),
    "contrastive": (lambda: model(contrastive), {IN_COMPILE.format("contrastive"): NEITHER}),
    "added sum": (lambda: model(added=lambda x: 0.01 * squares(x)), {ADDED: SUM}),
    "small added sum": (lambda: model(added=lambda x: 1e-4 * squares(x)), {ADDED: SUM}),
    "added values": (lambda: model(added=lambda x: ops.mean(ops.square(x), axis=1)), {ADDED: SUM}),
    "added norm": (lambda: model(added=lambda x: ops.norm(x)), {ADDED: NEITHER}),
    "sum of what is 0 at first": (
        lambda: model(inner=lambda x: Adds(squares)(layers.Dense(4, kernel_initializer="zeros")(x))),
        {ADDED: SUM},
    ),
    "sum in compute_loss": (lambda: model(kind=Summing), {"the loss of the training step": NEITHER}),
    "sum after noise": (lambda: model(summed, inner=Sampling()), {IN_COMPILE.format("summed"): SUM}),
}
RIGHT: dict[str, Callable[[], Any]] = {
    "mean": model,
    "mask that ends before the output": lambda: model(mask_zero=True),
    "added mean": lambda: model(added=lambda x: ops.mean(ops.square(x))),
    "added 0": lambda: model(added=lambda x: 0.0 * ops.sum(x)),
    "regularizers": lambda: model(embeddings_regularizer="l2"),
    "activity regularizer": lambda: model(inner=layers.Dense(4, activity_regularizer="l2")),
    "dropout": lambda: model(inner=layers.Dropout(0.5)),
    "batch statistics": lambda: model(inner=layers.BatchNormalization()),
    "noise": lambda: model(inner=Sampling()),
    "sum that is divided": lambda: model(losses.MeanSquaredError(reduction="sum"), kind=Dividing),
    "16 bits": lambda: model(inner=layers.Dense(4, dtype="mixed_bfloat16")),
}


@pytest.mark.parametrize("case", OF_MODELS)
def test_a_term_of_a_model_that_is_not_a_mean_is_found(case: str) -> None:
    make, expected = OF_MODELS[case]
    assert differing(trial_of(make, labels="y")) == expected


@pytest.mark.parametrize("case", RIGHT)
def test_no_term_is_found_in_a_model_whose_losses_are_means(case: str) -> None:
    assert differing(trial_of(RIGHT[case], labels="y")) == {}


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda p, y, batch: tf.reduce_mean(tf.square(p - y)), None),
        (lambda p, y, batch: tf.reduce_sum(tf.square(p - y)), SUM),
        (lambda p, y, batch: tf.square(p - y), SUM),
        (lambda p, y, batch: tf.reduce_sum(tf.square(p - y)) / tf.cast(tf.shape(p)[0], tf.float32), None),
        (lambda p, y, batch: tf.sqrt(tf.reduce_mean(tf.square(p - y))), NEITHER),
        (lambda p, y, batch: tf.reduce_mean(tf.nn.dropout(p, 0.5) + tf.random.normal(tf.shape(p))), None),
        (lambda p, y, batch: tf.reduce_sum(tf.nn.dropout(p, 0.5) + tf.random.normal(tf.shape(p))), SUM),
        (lambda p, y, batch: losses.MeanSquaredError(reduction="sum")(y, p) / 8.0, SUM),
    ],
)
def test_the_loss_of_a_step_with_a_tape(loss: Any, expected: LossKind | None) -> None:
    assert list(differing(trial_of(lambda: step(loss))).values()) == ([] if expected is None else [expected])


def test_a_gradient_of_predictions_is_not_a_loss() -> None:
    """A gradient penalty computes gradients of a sum over examples, but not for a variable."""

    def penalty(predicted: Any, labels: Any, batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(batch["x"])
            score = tf.reduce_sum(tf.square(batch["x"]), axis=1)
        slope = tape.gradient(score, batch["x"])
        return tf.reduce_mean(tf.square(predicted - labels)) + tf.reduce_mean(tf.norm(slope, axis=1))

    assert differing(trial_of(lambda: step(penalty))) == {}


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_mask_of_keras(is_masked: bool) -> None:
    """All words of the real examples are present."""
    trial = trial_of(lambda: each_word("mse", mask_zero=is_masked), labels="z")
    assert differing(trial) == ({IN_COMPILE.format("mse"): NEITHER} if is_masked else {})


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sum_over_batch_size", {}), ("mean_with_sample_weight", {"mean_squared_error": NEITHER})]
)
def test_weights_of_examples(reduction: str, expected: dict[str, LossKind]) -> None:
    """All weights of the real examples are 1."""
    trial = trial_of(
        lambda: model(losses.MeanSquaredError(reduction=reduction)), labels="y", sample_weight="weight"
    )
    assert differing(trial) == {IN_COMPILE.format(name): kind for name, kind in expected.items()}


def test_each_output_is_named() -> None:
    def make() -> Any:
        ids, x = keras.Input((LENGTH,), dtype="int32", name="ids"), keras.Input((3,), name="x")
        made = keras.Model([ids, x], [layers.Dense(1, name="first")(x), layers.Dense(1, name="second")(x)])
        made.compile("sgd", ["mse", losses.MeanAbsoluteError(reduction="sum")], loss_weights=[1.0, 1e-3])
        return made

    assert differing(trial_of(make, labels=["y", "y"])) == {
        "the loss «mean_absolute_error» of the output «second» in compile": SUM
    }


@pytest.mark.parametrize("step_examples", [2, 3, 6])
def test_small_steps(step_examples: int) -> None:
    """One example for each of two or three replicas, or an odd half."""
    assert differing(trial_of(lambda: model(summed), labels="y"), step_examples=step_examples) == {
        IN_COMPILE.format("summed"): SUM
    }
    assert differing(trial_of(model, labels="y"), step_examples=step_examples) == {}
