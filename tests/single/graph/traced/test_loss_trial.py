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

from parallax_runner.graph.traced import made_up_values, trial_graph
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.graph.traced.loss_kinds import LossKind
from parallax_runner.graph.traced.loss_notes import differing_terms, notes_on_losses
from parallax_runner.graph.traced.loss_trial import LossTrial
from parallax_runner.layers import GrowingEmbedding
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


def drawn(values: Any) -> Any:
    """Random numbers, different in each call."""
    return np.random.default_rng().normal(size=values.shape).astype("float32")


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


class Unused(layers.Layer):
    """Computes a sum that is no part of the model's loss, as for a metric."""

    def call(self, x: Any) -> Any:
        losses.MeanSquaredError(reduction="sum")(x, ops.zeros_like(x))
        return x


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
    "rounding errors": lambda: model(added=lambda x: ops.abs(ops.mean(7.1 * x) - 7.1 * ops.mean(x))),
    "regularizers": lambda: model(embeddings_regularizer="l2"),
    "activity regularizer": lambda: model(inner=layers.Dense(4, activity_regularizer="l2")),
    "dropout": lambda: model(inner=layers.Dropout(0.5)),
    "batch statistics": lambda: model(inner=layers.BatchNormalization()),
    "noise": lambda: model(inner=Sampling()),
    "sum that is divided": lambda: model(losses.MeanSquaredError(reduction="sum"), kind=Dividing),
    "sum that is not used": lambda: model(inner=Unused()),
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
        (lambda p, y, batch: tf.reduce_sum(tf.numpy_function(drawn, [p], tf.float32)) + 0.0 * p, None),
        (lambda p, y, batch: losses.MeanSquaredError(reduction="sum")(y[:, None], p[:, None]) / 8.0, SUM),
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
    ("reduction", "expected"),
    [("sum_over_batch_size", {}), ("mean_with_sample_weight", {"mean_squared_error": NEITHER})],
)
def test_weights_of_examples(reduction: str, expected: dict[str, LossKind]) -> None:
    """All weights of the real examples are 1."""
    trial = trial_of(lambda: model(losses.MeanSquaredError(reduction=reduction)), labels="y", sample_weight="weight")
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


def test_a_loss_that_divides_by_the_size_of_the_traced_batch() -> None:
    """The size must be known when the model is traced."""

    def per_row(y_true: Any, y_pred: Any) -> Any:
        return ops.sum(ops.square(y_true - y_pred)) / int(y_pred.shape[0])

    def half_per_row(y_true: Any, y_pred: Any) -> Any:
        return ops.sum(ops.square(y_true - y_pred)) / int(y_pred.shape[0]) ** 0.5

    assert differing(trial_of(lambda: model(per_row), labels="y")) == {}
    expected = {IN_COMPILE.format("half_per_row"): NEITHER}
    assert differing(trial_of(lambda: model(half_per_row), labels="y")) == expected


def test_a_model_that_cannot_be_traced_for_a_half_is_read() -> None:
    """Only the reductions of its losses are known then."""

    def notes(loss: Any) -> tuple[str, ...]:
        for_this_size = layers.Lambda(lambda each: ops.reshape(each, (BATCH, 4)))
        trial = trial_of(lambda: model(loss, inner=for_this_size), labels="y")
        return notes_on_losses(trial, read(trial), replicas=2, step_examples=2 * BATCH).notes

    assert notes("mse") == ()
    (note,) = notes(losses.MeanSquaredError(reduction="sum"))
    assert "«mean_squared_error» in compile is a sum over examples. A step" in note


def test_each_of_several_losses_of_a_step_is_tried() -> None:
    """Two players, one of whom has a loss that is a sum."""

    def make() -> Any:
        first, second = tf.Variable([0.5, 0.2, 0.1], name="first"), tf.Variable([0.4, 0.3, 0.1], name="second")

        def train(batch: dict[str, Any]) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                one = tf.reduce_mean(tf.square(tf.linalg.matvec(batch["x"], first)))
                other = tf.reduce_sum(tf.square(tf.linalg.matvec(batch["x"], second)))
            first.assign_sub(tape.gradient(one, first))
            second.assign_sub(tape.gradient(other, second))
            return one + other

        return train

    name = "loss 2 of the 2 losses whose gradients the training step computes"
    assert differing(trial_of(make)) == {name: SUM}


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
def test_ragged_and_sparse_features(reduction: str) -> None:
    specs = {
        "words": tf.RaggedTensorSpec([BATCH, None], tf.int32, 1, tf.int64),
        "tags": tf.SparseTensorSpec([BATCH, 4], tf.float32),
        "y": tf.TensorSpec([BATCH, 1], tf.float32),
    }

    def make() -> Any:
        words = keras.Input([None], dtype="int32", ragged=True, name="words")
        tags = keras.Input([4], sparse=True, name="tags")
        found = layers.GlobalAveragePooling1D()(layers.Embedding(ROWS, 4)(words)) + layers.Dense(4)(tags)
        made = keras.Model([words, tags], layers.Dense(1)(found))
        made.compile("sgd", losses.MeanSquaredError(reduction=reduction))
        return made

    batch = {
        "words/values": np.arange(12, dtype="int32"),
        "words/row_splits": np.array([0, 3, 4, 6, 7, 8, 9, 11, 12]),
        "tags/indices": np.array([[row, row % 4] for row in range(8)]),
        "tags/values": np.linspace(1.0, 2.0, 8, dtype="float32"),
        "tags/dense_shape": np.array([8, 4]),
        "y": DATA["y"][:8],
    }
    tried = capture_step(make, specs, seed=7, options={"labels": "y"}).loss_trial.run(lambda size: batch, 16)
    assert [one.kind for one in differing_terms(tried[0])] == ([SUM] if reduction == "sum" else [])


def test_nothing_of_the_model_changes_and_large_tables_have_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the states of generators, metrics and statistics. The table is large here because it has 600 bytes, which
    are too many for the trial to hold."""
    monkeypatch.setattr(made_up_values, "LARGE_TABLE_BYTES", 500)
    monkeypatch.setattr(trial_graph, "MOST_BYTES", 500)
    made: list[Any] = []

    def make() -> Any:
        made.append(model(summed, inner=lambda x: layers.BatchNormalization()(layers.Dropout(0.5)(x))))
        return made[-1]

    trial = trial_of(make, labels="y")
    every = [*made[0].variables, *made[0].optimizer.variables, *made[0].metrics_variables]
    set_before = [one._value.is_initialized().numpy() for one in every]
    before = [one.numpy() for one, is_set in zip(every, set_before, strict=True) if is_set]
    assert differing(trial) == {IN_COMPILE.format("summed"): SUM}
    table = made[0].get_layer("table").embeddings
    assert not table._value.is_initialized()
    assert [one._value.is_initialized().numpy() for one in every] == set_before
    after = [one.numpy() for one, is_set in zip(every, set_before, strict=True) if is_set]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_vocabularies_that_grow_need_no_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map has more bytes than the trial may hold here."""
    monkeypatch.setattr(made_up_values, "LARGE_TABLE_BYTES", 500)
    monkeypatch.setattr(trial_graph, "MOST_BYTES", 500)

    def make() -> Any:
        ids, x = keras.Input([LENGTH], dtype="int32", name="ids"), keras.Input([3], name="x")
        rows = layers.Flatten()(GrowingEmbedding(4, 1024, seed=1)(ids))
        made = keras.Model([ids, x], layers.Dense(1)(layers.Concatenate()([rows, x])))
        made.compile("sgd", summed)
        return made

    assert differing(trial_of(make, labels="y")) == {IN_COMPILE.format("summed"): SUM}


def test_a_loss_that_reads_too_much_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_graph, "MOST_BYTES", 100)
    trial = trial_of(lambda: model(summed), labels="y")
    assert differing(trial) == {}
    assert {one.kind for loss in trial.run(read(trial), 16) for one in loss.terms} == {LossKind.UNKNOWN}


def test_the_notes_say_what_to_change_in_the_script() -> None:
    def notes(make: Callable[[], Any]) -> str:
        trial = trial_of(make, labels="y")
        (note,) = notes_on_losses(trial, read(trial), replicas=4, step_examples=4 * BATCH).notes
        return note

    added = notes(lambda: model(added=squares))
    assert "the layer «adds» adds with add_loss is a sum over examples (" in added
    assert "its 4 replicas, so this loss and its gradients are 4 times smaller than on one device. Pass a mean" in added
    assert notes(lambda: model(losses.MeanSquaredError(reduction="sum"))).endswith(
        "Use reduction='sum_over_batch_size', or set loss_weights to 4"
    )
    assert "Return one value for each example from the loss function" in notes(lambda: model(summed))
    assert "is neither a mean nor a sum over examples" in notes(lambda: model(among_positive))


# All models of the matrix passed once; these have what could raise a false alarm.
OF_THE_MATRIX = ("subclassed", "dropout", "outputs", "counted", "bfloat16", "two_optimizers")


@pytest.mark.parametrize("name", ["batch_norm", "own_metric", *(f"more-{name}" for name in OF_THE_MATRIX)])
def test_no_term_is_found_in_the_models_of_the_equivalence_matrix(name: str) -> None:
    name = name.removeprefix("more-")
    case = Case(model=name, optimizer="sgd", kind="tape" if name == "two_optimizers" else "keras")
    trial = keras_models.single(case).loss_trial
    parts = [keras_models.batch(case, step, rank=0) for step in range(4)]
    whole = {key: np.concatenate([one[key] for one in parts]) for key in parts[0]}
    with keras_models.as_case(case):
        tried = trial.run(lambda size: {key: array[:size] for key, array in whole.items()}, keras_models.BATCH * 2)
    assert tried
    assert [one for loss in tried for one in differing_terms(loss)] == []


def test_features_of_any_name() -> None:
    """As the columns of a file have."""
    names = ["Fare paid", "größe: m²", "9/x"]

    def make() -> Any:
        table = tf.Variable(tf.ones([3]), name="table")

        @tf.function
        def train(batch: dict[str, Any]) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(sum(batch[name] for name in names) * table)
            table.assign_sub(0.1 * tape.gradient(loss, table))
            return loss

        return train

    shapes = dict.fromkeys(names, SHAPES["x"])
    trial: LossTrial = capture_step(make, shapes, seed=7, options={}).loss_trial
    tried = trial.run(lambda size: {name: DATA["x"][:size] for name in names}, 2 * BATCH)
    assert [one.kind for loss in tried or () for one in differing_terms(loss)] == [SUM]
