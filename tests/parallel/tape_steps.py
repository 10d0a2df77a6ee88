"""Training steps with a tape for the equivalence matrix. Each function returns the step and its variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from keras import layers, optimizers

from tests.parallel.case_models import ROWS, WIDTH
from tests.parallel.keras_optimizers import OPTIMIZERS

# The number of examples by which a script divides. It need not be the true number.
GLOBAL_BATCH = 16


class Module(tf.Module):
    """A model without Keras: variables, and an update by hand."""

    def __init__(self) -> None:
        super().__init__(name="module")
        draw = np.random.default_rng(7)
        self.table = tf.Variable(draw.normal(size=(ROWS, WIDTH)), name="table")
        self.weights = tf.Variable(draw.normal(size=(WIDTH, WIDTH)), name="weights")

    def loss(self, batch: dict[str, Any]) -> Any:
        x = tf.gather(self.table, batch["ids"]) * batch["x"]
        for _ in tf.range(2):
            x = tf.tanh(tf.matmul(x, self.weights))
        if tf.reduce_sum(self.weights) > 0:
            x *= 2.0
        else:
            x += 0.1
        return tf.reduce_mean(tf.square(tf.reduce_sum(x, axis=1) - batch["y"]))


def module(optimizer: str) -> tuple[Any, list[Any]]:
    """A branch and a loop that AutoGraph converts; only the rows that are looked up are updated."""
    made = Module()

    @tf.function
    def step(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = made.loss(batch)
        rows, weights = tape.gradient(loss, [made.table, made.weights])
        made.table.scatter_sub(tf.IndexedSlices(0.05 * rows.values, rows.indices))
        made.weights.assign_sub(0.05 * weights)
        return loss

    return step, [made.table, made.weights]


def nested(optimizer: str) -> tuple[Any, list[Any]]:
    """A compiled function within the step, and an optimizer of Keras."""
    draw, chosen = np.random.default_rng(7), OPTIMIZERS[optimizer]()
    table = tf.Variable(draw.normal(size=(ROWS, WIDTH)), name="table")
    weights = tf.Variable(draw.normal(size=(WIDTH, WIDTH)), name="weights")

    @tf.function(jit_compile=True)
    def forward(rows: Any, x: Any) -> Any:
        return tf.reduce_sum(tf.tanh(tf.matmul(rows * x, weights)), axis=1)

    def step(batch: dict[str, Any]) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            predicted = forward(tf.nn.embedding_lookup(table, batch["ids"]), batch["x"])
            loss = tf.reduce_mean(tf.square(predicted - batch["y"]))
        variables = [table, weights]
        chosen.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}

    chosen.build([table, weights])
    return step, [table, weights, *chosen.variables]


def with_table(optimizer: str) -> tuple[Any, list[Any]]:
    """Names that a table of TensorFlow turns into rows; two rows are for unknown names."""
    draw, chosen = np.random.default_rng(7), OPTIMIZERS[optimizer]()
    rows = tf.Variable(draw.normal(size=(ROWS, WIDTH)), name="rows")
    names = ["", "ü", "日本", "a b", "🙂"]
    entries = tf.lookup.KeyValueTensorInitializer(names, tf.range(len(names), dtype=tf.int64))
    table = tf.lookup.StaticVocabularyTable(entries, 2)

    @tf.function
    def step(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            predicted = tf.reduce_sum(tf.gather(rows, table.lookup(batch["name"])) * batch["x"], axis=1)
            loss = tf.reduce_mean(tf.square(predicted - batch["y"]))
        chosen.apply(tape.gradient(loss, [rows]), [rows])
        return loss

    chosen.build([rows])
    return step, [rows, *chosen.variables]


def stack(optimizer: str) -> tuple[Any, list[Any]]:
    """Keras layers, trained with a tape."""
    table, dense, out = layers.Embedding(ROWS, WIDTH), layers.Dense(4, activation="tanh"), layers.Dense(1)
    chosen = OPTIMIZERS[optimizer]()
    for layer, shape in ((table, (None,)), (dense, (None, WIDTH)), (out, (None, 4))):
        layer.build(shape)
    variables = [one for layer in (table, dense, out) for one in layer.trainable_variables]
    chosen.build(variables)

    @tf.function
    def step(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            predicted = out(dense(table(batch["ids"]) * batch["x"]))[:, 0]
            loss = tf.reduce_mean(tf.square(predicted - batch["y"]))
        chosen.apply(tape.gradient(loss, variables), variables)
        return loss

    return step, [*variables, *chosen.variables]


def declared_tape(optimizer: str) -> tuple[Any, list[Any]]:
    """The same as `declared` with variables of TensorFlow."""
    draw, chosen = np.random.default_rng(7), OPTIMIZERS[optimizer]()
    table = tf.Variable(draw.normal(size=(ROWS, WIDTH)), name="table")
    on_read = {"trainable": False, "synchronization": tf.VariableSynchronization.ON_READ}
    seen = tf.Variable(0, dtype=tf.int64, name="seen", aggregation=tf.VariableAggregation.SUM, **on_read)
    average = tf.Variable(np.ones(WIDTH), name="average", aggregation=tf.VariableAggregation.MEAN, **on_read)
    chosen.build([table])

    @tf.function
    def step(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            x = tf.gather(table, batch["ids"]) * batch["x"]
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.tanh(x - average), axis=1) - batch["y"]))
        chosen.apply(tape.gradient(loss, [table]), [table])
        seen.assign_add(tf.math.count_nonzero(x > 0))
        average.assign_add(0.1 * (tf.reduce_mean(x, axis=0) - average))
        return loss

    return step, [table, seen, average, *chosen.variables]


def two_optimizers(optimizer: str) -> tuple[Any, list[Any]]:
    """One optimizer lowers the loss that the other one raises, in the same step."""
    maker, judge = layers.Dense(WIDTH, activation="tanh"), layers.Dense(1)
    table = layers.Embedding(ROWS, WIDTH)
    for layer, shape in ((table, (None,)), (maker, (None, WIDTH)), (judge, (None, WIDTH))):
        layer.build(shape)
    made = [*table.trainable_variables, *maker.trainable_variables]
    first, second = OPTIMIZERS[optimizer](), optimizers.SGD(0.02, name="second")
    first.build(made)
    second.build(judge.trainable_variables)

    @tf.function
    def step(batch: dict[str, Any]) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            fake = judge(maker(table(batch["ids"])))[:, 0]
            real = judge(batch["x"])[:, 0]
            judged = tf.reduce_mean(tf.square(real - batch["y"]) + 0.1 * tf.square(fake))
            made_well = tf.reduce_mean(tf.square(fake - 1.0))
        by_first = tape.gradient(made_well, made)
        by_second = tape.gradient(judged, judge.trainable_variables)
        first.apply(by_first, made)
        second.apply(by_second, judge.trainable_variables)
        return made_well + judged

    return step, [*made, *judge.trainable_variables, *first.variables, *second.variables]


def from_mirrored(optimizer: str) -> tuple[Any, list[Any]]:
    """A step whose loss is divided by the number of examples of all replicas, and a penalty that is not."""
    table, dense = layers.Embedding(ROWS, WIDTH), layers.Dense(1)
    chosen = OPTIMIZERS[optimizer]()
    table.build((None,))
    dense.build((None, WIDTH))
    variables = [*table.trainable_variables, *dense.trainable_variables]
    chosen.build(variables)

    @tf.function
    def step(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            predicted = dense(table(batch["ids"]) * batch["x"])[:, 0]
            loss = tf.nn.compute_average_loss(tf.square(predicted - batch["y"]), global_batch_size=GLOBAL_BATCH)
            loss += 0.01 * tf.reduce_sum(tf.square(dense.kernel))
        chosen.apply(tape.gradient(loss, variables), variables)
        return loss

    return step, [*variables, *chosen.variables]


def summed(optimizer: str) -> tuple[Any, list[Any]]:
    """A sum over examples, divided by a constant, whose gradients are then clipped."""
    table, dense = layers.Embedding(ROWS, WIDTH), layers.Dense(1)
    chosen = OPTIMIZERS[optimizer]()
    table.build((None,))
    dense.build((None, WIDTH))
    variables = [*table.trainable_variables, *dense.trainable_variables]
    chosen.build(variables)

    @tf.function
    def step(batch: dict[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            predicted = dense(table(batch["ids"]) * batch["x"])[:, 0]
            errors = tf.square(predicted - batch["y"])
            loss = tf.reduce_sum(errors) / GLOBAL_BATCH
        clipped, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.5)
        chosen.apply(clipped, variables)
        return tf.reduce_mean(errors)

    return step, [*variables, *chosen.variables]
