"""Models and data of runs whose number of workers changes, for test_elastic.py and its runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Dataset
from parallax_runner.layers import GrowingEmbedding
from tests.integration.resumable import IDS, ROWS, WIDTH

EXAMPLES = 600
SLOW_SECS = 0.1
# Examples with keys, of which some are new in each step. Eight times as many, so that a run reads each once.
KEYED_EXAMPLES, FIRST_KEYS, KEY_FACTOR = 4800, 50, 1000003
CAPACITY = 16384
# What the workers of the script feed.
SCRIPT_IDS = ([0, 1, 2, 2], [2, 3, 4, 5])
SCRIPT_RATE = 0.01


class SlowUntil(ArrayDataset):
    """Data whose batches take a while to read until the file `fast` exists, so that a run lasts until its cluster has
    changed."""

    fast: Path

    def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        """Returns a batch."""
        if not self.fast.exists():
            time.sleep(SLOW_SECS)
        return super().train_batch(start, size)


def load(*, fast: str, seed: int) -> Dataset:
    """Returns examples with the features `ids` [IDS], `number`, the number of the example, and `y`."""
    draw = np.random.default_rng(seed)
    train = {
        "ids": draw.integers(0, ROWS, (EXAMPLES, IDS)).astype(np.int32),
        "number": np.arange(EXAMPLES, dtype=np.int32),
        "y": draw.normal(size=EXAMPLES).astype(np.float32),
    }
    return _slow(train, fast, seed)


def load_keyed(*, fast: str, seed: int) -> Dataset:
    """Returns examples with the features `ids` [IDS], keys of a vocabulary, and `y`. An example can have the keys of
    all examples with a smaller number."""
    draw = np.random.default_rng(seed)
    numbers = draw.integers(0, FIRST_KEYS + np.arange(KEYED_EXAMPLES)[:, np.newaxis], (KEYED_EXAMPLES, IDS))
    return _slow({"ids": numbers * KEY_FACTOR, "y": draw.normal(size=KEYED_EXAMPLES).astype(np.float32)}, fast, seed)


def _slow(train: dict[str, np.ndarray], fast: str, seed: int) -> Dataset:
    validation = {name: rows[:60] for name, rows in train.items()}
    made = SlowUntil(train=train, validation=validation, words_per_example=None, seed=seed)
    made.fast = Path(fast)
    return made


def build_counting(features: dict[str, tf.Tensor], optimizer: tf.train.Optimizer) -> dict[str, Any]:
    """Builds a model with the variable `visits` [EXAMPLES, 1]. With SGD and a rate that equals the number of examples
    in a step, each visit of an example adds 1 to its row."""
    visits = tf.get_variable("visits", [EXAMPLES, 1], initializer=tf.zeros_initializer())
    loss = -tf.reduce_mean(tf.nn.embedding_lookup(visits, features["number"]))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op}


def build_constant(features: dict[str, tf.Tensor], optimizer: tf.train.Optimizer) -> dict[str, Any]:
    """Builds a model like `build_deterministic` whose initial values are constants."""
    values = np.linspace(-1.0, 1.0, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    table = tf.get_variable("table", [ROWS, WIDTH], initializer=tf.constant_initializer(values))
    weights = tf.get_variable("weights", [IDS, WIDTH], initializer=tf.ones_initializer())
    predicted = tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]) * weights, axis=[1, 2])
    loss = tf.reduce_mean(tf.square(predicted - features["y"]))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op}


def build_of_script() -> None:
    """Builds the model of scripts/train_resized.py, with the placeholder `ids` and the operation `train`."""
    ids = tf.placeholder(tf.int32, [None], name="ids")
    table = tf.get_variable("table", [6, 2], initializer=tf.ones_initializer())
    weights = tf.get_variable("weights", [2], initializer=tf.ones_initializer())
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.nn.embedding_lookup(table, ids) * weights, axis=1) - 3.0))
    tf.train.GradientDescentOptimizer(SCRIPT_RATE).minimize(loss, global_step=step, name="train")


def make_keras(*, learning_rate: float) -> keras.Model:
    """Returns a compiled Keras model with a table and a dense layer."""
    ids = keras.Input([IDS], dtype="int32", name="ids")
    rows = keras.layers.Flatten()(keras.layers.Embedding(ROWS, WIDTH, name="table")(ids))
    model = keras.Model({"ids": ids}, keras.layers.Dense(1, name="top")(rows))
    model.compile(optimizer=keras.optimizers.Adagrad(learning_rate), loss="mse", metrics=["mae"])
    return model


def make_growing(*, learning_rate: float) -> keras.Model:
    """Returns a compiled Keras model with a table that grows and a dense layer."""
    ids = keras.Input([IDS], dtype="int64", name="ids")
    rows = keras.layers.Flatten()(GrowingEmbedding(WIDTH, CAPACITY, seed=3, name="items")(ids))
    model = keras.Model({"ids": ids}, keras.layers.Dense(1, name="top")(rows))
    model.compile(optimizer=keras.optimizers.Adagrad(learning_rate), loss="mse", metrics=["mae"])
    return model
