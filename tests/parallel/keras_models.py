"""Keras models of the equivalence matrix: small, in float64, plain Keras throughout. `MODELS` also has the steps with
a tape.

This module imports Keras, so only code that builds a case of such a model imports it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from parallax_runner.data.shares import SHARE
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.graph.traced.loss_divisors import with_sums
from parallax_runner.graph.uneven_steps import with_share
from parallax_runner.layers import GrowingEmbedding
from tests.parallel import growing_keys, tape_steps
from tests.parallel.case_models import BATCH, ROWS, WIDTH
from tests.parallel.keras_optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from tests.parallel.cases import Case

LENGTH, MANY_ROWS = 5, 40
layers = keras.layers

# Shape of an example, and dtype.
FEATURES: dict[str, tuple[tuple[int, ...], str]] = {
    "ids": ((), "int32"),
    "once": ((), "int32"),
    "words": ((LENGTH,), "int32"),
    "x": ((WIDTH,), "float64"),
    "image": ((6, 6, 2), "float64"),
    "y": ((), "float64"),
    "z": ((), "float64"),
    "weight": ((), "float64"),
    "clicked": ((), "float64"),
    "key": ((), "int64"),
    "keys": ((LENGTH,), "int64"),
    "name": ((), "string"),
    "text": ((1,), "string"),
    "passing": ((LENGTH,), "int64"),
}
# Words in the vocabularies of the models, and beside them.
KNOWN, UNKNOWN = ["", "ü", "日本", "a b", "🙂", "e"], ["neu", "nie", "[UNK]"]


@dataclass(frozen=True)
class TracedModel:
    """`make` takes the name of an optimizer, and returns a compiled model, or a training step and its variables.

    `options` are those of the model's group.
    """

    make: Callable[[str], Any]
    features: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=lambda: {"labels": "y"})


def batch(case: Case, step: int, rank: int) -> dict[str, np.ndarray]:
    """Returns the features of the case's model. Those of one step contain each row of `once` only once."""
    draw = np.random.default_rng([7, step, rank])
    found = {
        "ids": draw.integers(0, ROWS, BATCH),
        "once": np.random.default_rng([7, step]).permutation(MANY_ROWS)[rank * BATCH : (rank + 1) * BATCH],
        "words": draw.integers(0, ROWS, (BATCH, LENGTH)),
        "x": draw.normal(size=(BATCH, WIDTH)),
        "image": draw.normal(size=(BATCH, 6, 6, 2)),
        "y": draw.normal(size=BATCH),
        "z": draw.normal(size=BATCH),
        "weight": draw.uniform(0.5, 1.5, size=BATCH),
        "clicked": draw.integers(0, 2, BATCH),
        "key": draw.choice(growing_keys.seen_by(step), BATCH),
        "keys": draw.choice(growing_keys.seen_by(step), (BATCH, LENGTH)),
        "name": _words(draw, (BATCH,)),
        "text": np.array([[b" ".join(row)] for row in _words(draw, (BATCH, 3))], object),
        "passing": draw.choice(growing_keys.passing(step), (BATCH, LENGTH)),
    }
    if case.optimizer == "loss_scale" and (step, rank) == (4, case.ranks - 1):
        found["y"][0] = np.inf  # no rank updates in this step, and all halve the scale
    types = {name: object if dtype == "string" else dtype for name, (_, dtype) in FEATURES.items()}
    return {name: found[name].astype(types[name]) for name in MODELS[case.model].features}


def _words(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    words = np.array([word.encode() for word in (*KNOWN, *UNKNOWN)], object)
    return words[draw.integers(0, len(words), shape)]


@contextmanager
def as_case(case: Case) -> Iterator[None]:
    """Names variables after the case, because servers outlive it, and makes them in float64."""
    kept = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    scope = re.sub(r"\W", "_", f"{case.kind}_{case.model}_{case.optimizer}_{case.comm}_{case.ranks}_{case.fault}")
    try:
        with keras.name_scope(scope):
            yield
    finally:
        keras.config.set_floatx(kept[0])
        keras.config.set_dtype_policy(kept[1])


def make(case: Case) -> tuple[Any, list[Any]]:
    """Returns a model, or a step and all variables that it trains or keeps."""
    made = MODELS[case.model].make(case.optimizer)
    return made if case.kind == "tape" else (made, [])


def single(case: Case) -> SingleDeviceGraph:
    """Returns the captured step, which is the same in every process."""
    size = None if case.uneven else BATCH
    shapes = {name: ((size, *FEATURES[name][0]), FEATURES[name][1]) for name in MODELS[case.model].features}
    with as_case(case):
        single = capture_step(lambda: make(case)[0], shapes, seed=7, options=MODELS[case.model].options)
    if case.model in SHOWN:
        single = dataclasses.replace(single, divisors=with_sums(single.divisors, SHOWN[case.model]))
    return with_share(single) if case.uneven else single


def split(case: Case, values: dict[str, np.ndarray]) -> tuple[Any, Any, Any]:
    """Splits a batch as Keras takes it: inputs by name, labels, and the weights of examples."""
    labels, weight = (MODELS[case.model].options.get(key) for key in ("labels", "sample_weight"))
    if isinstance(labels, dict):
        given = {output: values[name] for output, name in labels.items()}
    else:
        given = values[labels] if isinstance(labels, str) else [values[name] for name in labels]
    inputs = {name: array for name, array in values.items() if name not in ("y", "z", "weight", "clicked", SHARE)}
    if any(array.dtype == object for array in inputs.values()):  # Keras takes strings as tensors
        inputs = {name: tf.constant(array) for name, array in inputs.items()}
    return inputs, given, None if weight is None else values[weight]


def name_of(variable: Any) -> str:
    """Returns the name that the step's graph must have for a variable."""
    name = variable.path if isinstance(variable, keras.Variable) else variable.name.split(":")[0]
    return re.sub(r"[^\w./-]", "_", name)


def _inputs(*names: str) -> dict[str, Any]:
    return {name: keras.Input(FEATURES[name][0], dtype=FEATURES[name][1], name=name) for name in names}


def _compiled(model: Any, optimizer: str, loss: Any = "mse", **arguments: Any) -> Any:
    model.compile(optimizer=OPTIMIZERS[optimizer](), loss=loss, **arguments)
    return model


def functional(optimizer: str) -> Any:
    """Two tables, for ids of two dtypes, and two dense layers."""
    given = _inputs("ids", "x")
    table = layers.Embedding(ROWS, WIDTH, name="table")(given["ids"])
    other = layers.Embedding(ROWS, 2, name="other")((given["ids"] * 2 + 1) % ROWS)
    x = layers.Concatenate()([table * given["x"], other])
    x = layers.Dense(4, activation="tanh", name="hidden")(x)
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


def once(optimizer: str) -> Any:
    """No id occurs twice in a step, so the missing merge in plain Keras makes no difference."""
    given = _inputs("once", "x")
    table = layers.Embedding(MANY_ROWS, WIDTH, name="table")(given["once"])
    other = layers.Embedding(MANY_ROWS, 2, name="other")(given["once"])
    x = layers.Dense(4, activation="tanh")(layers.Concatenate()([table + given["x"], other]))
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


def sequential(optimizer: str) -> Any:
    """A model without an input layer, built by the first batch."""
    return _compiled(keras.Sequential([layers.Dense(4, activation="relu"), layers.Dense(1)]), optimizer)


def sequential_embedding(optimizer: str) -> Any:
    """A table at the front, and a mean over the words."""
    return _compiled(
        keras.Sequential([layers.Embedding(ROWS, WIDTH), layers.GlobalAveragePooling1D(), layers.Dense(1)]), optimizer
    )


class Subclassed(keras.Model):
    """A model whose `call` uses its layers, one of them with its own weight."""

    def __init__(self) -> None:
        super().__init__(name="subclassed")
        self.table = layers.Embedding(ROWS, WIDTH, embeddings_initializer="glorot_uniform")
        self.hidden = layers.Dense(4, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01))
        self.out = layers.Dense(1)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, batch: dict[str, Any]) -> Any:
        x = self.hidden(self.table(batch["ids"]) * batch["x"] * self.scale)
        return self.out(x)


def subclassed(optimizer: str) -> Any:
    """A subclass of keras.Model."""
    return _compiled(Subclassed(), optimizer)


def shared(optimizer: str) -> Any:
    """Two lookups of one table."""
    given = _inputs("ids", "words", "x")
    table = layers.Embedding(ROWS, WIDTH, name="table")
    words = layers.GlobalAveragePooling1D()(table(given["words"]))
    x = layers.Dense(4, activation="tanh")(table(given["ids"]) * given["x"] + words)
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


def growing(optimizer: str) -> Any:
    """Two tables that grow. One is looked up twice, and some of its buckets overflow."""
    given = _inputs("key", "keys", "x")
    table = GrowingEmbedding(WIDTH, 1024, overflow="shared", seed=5, name="table")
    words = layers.GlobalAveragePooling1D()(table(given["keys"]))
    other = GrowingEmbedding(2, 8192, scale=0.5, seed=6, name="other")(given["key"])
    x = layers.Concatenate()([table(given["key"]) * given["x"] + words, other])
    return _compiled(keras.Model(given, layers.Dense(1)(layers.Dense(4, activation="tanh")(x))), optimizer)


def passing(optimizer: str) -> Any:
    """A table that admits keys at the second sight and evicts them, some of whose buckets are full, and one that evicts
    keys."""
    given = _inputs("key", "passing", "x")
    rules = {"admit": {"min_count": 2}, "evict": {"unused_steps": 2, "every_steps": 3}}
    table = GrowingEmbedding(WIDTH, 1024, overflow="shared", seed=5, **rules, name="table")
    other = GrowingEmbedding(2, 8192, scale=0.5, seed=6, evict={"unused_steps": 1, "every_steps": 2}, name="other")
    words = layers.GlobalAveragePooling1D()(table(given["passing"]))
    x = layers.Concatenate()([words * given["x"], other(given["key"])])
    model = _compiled(keras.Model(given, layers.Dense(1)(layers.Dense(4, activation="tanh")(x))), optimizer)
    for one in (table, other):
        one.set_optimizer(model.optimizer)
    return model


def growing_beside(optimizer: str) -> Any:
    """A table that grows, one whose keys come and go, and one that does not grow."""
    given = _inputs("key", "keys", "passing", "ids", "x")
    table = GrowingEmbedding(WIDTH, 1024, overflow="shared", seed=5, name="table")
    rules = {"admit": {"min_count": 2}, "evict": {"unused_steps": 2, "every_steps": 3}}
    passing = GrowingEmbedding(2, 8192, scale=0.5, seed=6, **rules, name="coming")
    static = layers.Embedding(ROWS, WIDTH, name="static")(given["ids"])
    words = layers.GlobalAveragePooling1D()(table(given["keys"]))
    lasting = table(given["key"]) * given["x"] + words
    x = layers.Concatenate()([lasting, layers.GlobalAveragePooling1D()(passing(given["passing"])), static])
    model = _compiled(keras.Model(given, layers.Dense(1)(layers.Dense(4, activation="tanh")(x))), optimizer)
    passing.set_optimizer(model.optimizer)
    return model


def lstm(optimizer: str) -> Any:
    """Row 0 stands for no word, which is masked."""
    given = _inputs("words")
    x = layers.LSTM(4)(layers.Embedding(ROWS, WIDTH, mask_zero=True)(given["words"]))
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


def gru(optimizer: str) -> Any:
    """One of its loops is unrolled."""
    given = _inputs("words")
    x = layers.GRU(4, return_sequences=True)(layers.Embedding(ROWS, WIDTH)(given["words"]))
    return _compiled(keras.Model(given, layers.Dense(1)(layers.GRU(3, unroll=True)(x))), optimizer)


def convolutions(optimizer: str) -> Any:
    """Convolutions over words and over images."""
    given = _inputs("words", "image")
    words = layers.Conv1D(4, 2, activation="tanh")(layers.Embedding(ROWS, WIDTH)(given["words"]))
    image = layers.MaxPooling2D()(layers.Conv2D(3, 3, activation="tanh", padding="same")(given["image"]))
    x = layers.Concatenate()([layers.GlobalAveragePooling1D()(words), layers.Flatten()(image)])
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


def batch_norm(optimizer: str) -> Any:
    """Statistics of each rank's own batch; the chief's are kept."""
    given = _inputs("ids", "x")
    x = layers.Embedding(ROWS, WIDTH)(given["ids"]) * given["x"]
    x = layers.BatchNormalization(momentum=0.8)(layers.Dense(4, use_bias=False)(x))
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


def synchronized(optimizer: str) -> Any:
    """Statistics of the whole step's batch, in two layers."""
    given = _inputs("ids", "x")
    x = layers.Embedding(ROWS, WIDTH)(given["ids"]) * given["x"]
    x = layers.BatchNormalization(momentum=0.8, synchronized=True)(layers.Dense(4, use_bias=False)(x))
    x = layers.BatchNormalization(synchronized=True)(layers.Dense(3, "tanh")(x))
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


class Declared(layers.Layer):
    """A layer with two variables without gradients that declare how ranks merge them. The outputs depend on one."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.seen = self.add_weight(
            shape=(), dtype="int64", initializer="zeros", trainable=False, aggregation="sum", name="seen"
        )
        self.average = self.add_weight(
            shape=shape[1:], initializer="ones", trainable=False, aggregation="mean", name="average"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        shifted = x - self.average
        if training:
            self.seen.assign_add(keras.ops.sum(keras.ops.cast(x > 0, "int64")))
            self.average.assign_add(0.1 * (keras.ops.mean(x, axis=0) - self.average))
        return shifted


def declared(optimizer: str) -> Any:
    """A count and a moving average of the whole step's batch, which plain Keras computes on the concatenated batch."""
    given = _inputs("ids", "x")
    x = Declared(name="declared")(layers.Embedding(ROWS, WIDTH)(given["ids"]) * given["x"])
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


class LastOnly(layers.Layer):
    """Removes the last dimension, which has the size 1, and keeps the mask."""

    supports_masking = True

    def call(self, x: Any) -> Any:
        return x[..., 0]


class AddsSum(layers.Layer):
    """Adds a sum over examples to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x)))
        return x


class SquareOfEachWord(keras.losses.Loss):
    """One value for each word. All words of an example have the same label."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(y_pred - keras.ops.reshape(y_true, (-1, 1)))


def of_valid_words(reduction: str, kind: Callable[..., Any] = keras.Model) -> Callable[[str], Any]:
    """A loss for each word. Row 0 stands for no word, which is masked."""

    def make(optimizer: str) -> Any:
        given = _inputs("words")
        x = layers.Dense(1)(layers.Embedding(ROWS, WIDTH, mask_zero=True)(given["words"]))
        loss = SquareOfEachWord(reduction=reduction)
        return _compiled(kind(given, LastOnly()(x)), optimizer, loss)

    return make


def reduced(reduction: str | None) -> Callable[[str], Any]:
    """A loss with this reduction."""

    def make(optimizer: str) -> Any:
        given = _inputs("ids", "x")
        x = layers.Embedding(ROWS, WIDTH)(given["ids"]) * given["x"]
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer, loss)

    return make


def adds_sum(optimizer: str) -> Any:
    """A mean, and a sum that a layer adds."""
    given = _inputs("ids", "x")
    x = AddsSum()(layers.Embedding(ROWS, WIDTH)(given["ids"]) * given["x"])
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


def dropout(optimizer: str) -> Any:
    """Random draws, with a generator for each layer."""
    given = _inputs("ids", "x")
    x = layers.Dropout(0.4)(layers.Embedding(ROWS, WIDTH)(given["ids"])) * given["x"]
    x = layers.GaussianNoise(0.1)(layers.Dense(4, activation="tanh")(x))
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


def attention(optimizer: str) -> Any:
    """Self-attention over words, without the biases of keys, whose gradients are only rounding errors."""
    given = _inputs("words")
    x = layers.Embedding(ROWS, 4)(given["words"])
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 3, use_bias=False)(x, x))
    return _compiled(keras.Model(given, layers.Dense(1)(layers.GlobalAveragePooling1D()(x))), optimizer)


def preprocessing(optimizer: str) -> Any:
    """Layers that prepare features, without tables; one has adapted statistics."""
    given = _inputs("ids", "x")
    normalize = layers.Normalization()
    normalize.adapt(np.random.default_rng(7).normal(2.0, 3.0, size=(50, WIDTH)))
    hashed = layers.Embedding(ROWS, WIDTH)(layers.Hashing(ROWS)(given["ids"]))
    bins = layers.Embedding(4, 2)(layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0])(given["x"]))
    x = layers.Concatenate()([normalize(given["x"]), hashed, layers.Flatten()(layers.Rescaling(0.5, 0.1)(bins))])
    return _compiled(keras.Model(given, layers.Dense(1)(x)), optimizer)


def strings(optimizer: str) -> Any:
    """Layers with tables of words and of integers, one of them adapted, in every form of output."""
    given = _inputs("name", "text", "ids", "x")
    text = layers.TextVectorization(output_sequence_length=4, max_tokens=9)
    text.adapt(tf.constant([" ".join([*KNOWN, "e e", "neu"])]))
    name = layers.StringLookup(vocabulary=KNOWN[1:], num_oov_indices=3, mask_token="")(given["name"])
    words = text(given["text"])
    encoded = [
        layers.Embedding(9, WIDTH)(name) * given["x"],
        layers.Flatten()(layers.Embedding(9, 2)(words)),
        layers.StringLookup(vocabulary=KNOWN[1:], output_mode="multi_hot")(given["text"]),
        layers.IntegerLookup(vocabulary=[3, 1, 4], output_mode="one_hot")(given["ids"]),
        layers.IntegerLookup(vocabulary=[3, 1, 4], num_oov_indices=2, output_mode="count")(words),
        layers.Embedding(ROWS, 2)(layers.Hashing(ROWS)(given["name"])),
        layers.CategoryEncoding(9, output_mode="multi_hot")(words),
    ]
    x = layers.Concatenate()([keras.ops.cast(one, "float64") for one in encoded])
    return _compiled(keras.Model(given, layers.Dense(1)(layers.Dense(4, activation="tanh")(x))), optimizer)


def loaded(optimizer: str) -> Any:
    """A table and a bias are set after the model is built, not by their initializers."""
    model = functional(optimizer)
    draw = np.random.default_rng(7)
    for name in ("table", "hidden"):
        layer = model.get_layer(name)
        layer.set_weights([draw.normal(size=each.shape) for each in layer.get_weights()])
    return model


def counted(optimizer: str) -> Any:
    """Metrics beside the loss: some use the weights of examples, and one does not."""
    given = _inputs("ids", "x")
    x = layers.Dense(4, activation="tanh")(layers.Embedding(ROWS, WIDTH)(given["ids"]) * given["x"])
    model = keras.Model(given, layers.Dense(1, activation="sigmoid")(x))
    weighted = [keras.metrics.AUC(name="weighted"), keras.metrics.Precision(thresholds=0.4), "mse"]
    return _compiled(model, optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC()], weighted_metrics=weighted)


class OwnStep(keras.Model):
    """A model with its own training step: a loss beside that of compile, and a metric that shows it."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted) + 0.01 * tf.reduce_mean(tf.square(predicted))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class OwnMetric(OwnStep):
    """A model whose reported loss is a mean that a metric keeps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        found = super().train_step(data)
        self.tracker.update_state(found["loss"])
        return {"loss": self.tracker.result()}


class MaskedStep(keras.Model):
    """A model with its own training step: three times the loss of compile, which a mask reaches."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = 3.0 * self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def _own(kind: type) -> Callable[[str], Any]:
    def make(optimizer: str) -> Any:
        given = _inputs("ids", "x")
        x = layers.Dense(4, activation="tanh")(layers.Embedding(ROWS, WIDTH)(given["ids"]) * given["x"])
        return _compiled(kind(given, layers.Dense(1)(x)), optimizer)

    return make


def outputs(optimizer: str) -> Any:
    """Two outputs, each with its own loss, and weights between them."""
    given = _inputs("ids", "x")
    x = layers.Dense(4, activation="tanh")(layers.Embedding(ROWS, WIDTH)(given["ids"]) * given["x"])
    model = keras.Model(given, [layers.Dense(1, name="first")(x), layers.Dense(1, name="second")(x)])
    return _compiled(model, optimizer, ["mse", "mae"], loss_weights=[1.0, 0.5])


def named_outputs(optimizer: str) -> Any:
    """The same by name."""
    given = _inputs("ids", "x")
    x = layers.Dense(4, activation="tanh")(layers.Embedding(ROWS, WIDTH)(given["ids"]) * given["x"])
    model = keras.Model(given, {"first": layers.Dense(1, name="first")(x), "second": layers.Dense(1, name="second")(x)})
    return _compiled(model, optimizer, {"first": "mse", "second": "mae"})


def bfloat16(optimizer: str) -> Any:
    """Layers that compute in 16 bits, with weights of 32."""
    keras.config.set_dtype_policy("mixed_bfloat16")  # until the case ends
    given = _inputs("ids", "x")
    x = layers.Dense(4, activation="tanh")(layers.Embedding(ROWS, WIDTH)(given["ids"]) * given["x"])
    return _compiled(keras.Model(given, layers.Dense(1, dtype="float32")(x)), optimizer)


BASE = ("ids", "x", "y")
TWO = ("ids", "x", "y", "z")
MODELS: dict[str, TracedModel] = {
    "functional": TracedModel(functional, BASE),
    "once": TracedModel(once, ("once", "x", "y")),
    "sequential": TracedModel(sequential, ("x", "y")),
    "sequential_embedding": TracedModel(sequential_embedding, ("words", "y")),
    "subclassed": TracedModel(subclassed, BASE),
    "shared": TracedModel(shared, ("ids", "words", "x", "y")),
    "growing": TracedModel(growing, ("key", "keys", "x", "y")),
    "passing": TracedModel(passing, ("key", "passing", "x", "y")),
    "growing_beside": TracedModel(growing_beside, ("key", "keys", "passing", "ids", "x", "y")),
    "lstm": TracedModel(lstm, ("words", "y")),
    "gru": TracedModel(gru, ("words", "y")),
    "convolutions": TracedModel(convolutions, ("words", "image", "y")),
    "batch_norm": TracedModel(batch_norm, BASE),
    "synchronized": TracedModel(synchronized, BASE),
    "declared": TracedModel(declared, BASE),
    "masked": TracedModel(of_valid_words("sum_over_batch_size"), ("words", "y")),
    "masked_weights": TracedModel(of_valid_words("mean_with_sample_weight"), ("words", "y")),
    "masked_sum": TracedModel(of_valid_words("sum"), ("words", "y")),
    "sum": TracedModel(reduced("sum"), BASE),
    "unreduced": TracedModel(reduced(None), BASE),
    "mean_of_weights": TracedModel(
        reduced("mean_with_sample_weight"), (*BASE, "weight"), {"labels": "y", "sample_weight": "weight"}
    ),
    "adds_sum": TracedModel(adds_sum, BASE),
    "dropout": TracedModel(dropout, BASE),
    "attention": TracedModel(attention, ("words", "y")),
    "preprocessing": TracedModel(preprocessing, BASE),
    "own_step": TracedModel(_own(OwnStep), BASE),
    "own_metric": TracedModel(_own(OwnMetric), BASE),
    "outputs": TracedModel(outputs, TWO, {"labels": ["y", "z"]}),
    "named_outputs": TracedModel(named_outputs, TWO, {"labels": {"first": "y", "second": "z"}}),
    "weighted": TracedModel(functional, (*BASE, "weight"), {"labels": "y", "sample_weight": "weight"}),
    "loaded": TracedModel(loaded, BASE),
    "strings": TracedModel(strings, ("name", "text", "ids", "x", "y")),
    "lazy": TracedModel(functional, BASE, {"labels": "y", "sparse_updates": "lazy"}),
    "counted": TracedModel(
        counted, ("ids", "x", "clicked", "weight"), {"labels": "clicked", "sample_weight": "weight"}
    ),
    "bfloat16": TracedModel(bfloat16, BASE),
    "module": TracedModel(tape_steps.module, BASE, {}),
    "nested": TracedModel(tape_steps.nested, BASE, {}),
    "with_table": TracedModel(tape_steps.with_table, ("name", "x", "y"), {}),
    "stack": TracedModel(tape_steps.stack, BASE, {}),
    "declared_tape": TracedModel(tape_steps.declared_tape, BASE, {}),
    "two_optimizers": TracedModel(tape_steps.two_optimizers, BASE, {}),
    "masked_step": TracedModel(of_valid_words("sum_over_batch_size", MaskedStep), ("words", "y")),
    "from_mirrored": TracedModel(tape_steps.from_mirrored, BASE, {}),
    "summed": TracedModel(tape_steps.summed, BASE, {}),
}
# The numbers of the marks that the driver's trial shows to count.
SHOWN = {"adds_sum": {0}, "masked_step": {0}, "from_mirrored": {0}, "summed": {-1}}
