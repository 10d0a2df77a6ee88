"""Models whose vocabularies grow, and their data, for runs by the command line and in plain Keras."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Dataset
from parallax_runner.graph.growing.hashed_keys import BUCKETS
from parallax_runner.layers import GrowingEmbedding, growing_lookup
from tests.growing_keys import mixed

EXAMPLES, TRAINING_EXAMPLES, BATCH = 600, 480, 24
ITEMS = 3  # keys of an example
CROWDED_BUCKETS = 128
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
}


def load(seed: int) -> Dataset:
    """Returns examples with the features `item` [ITEMS], `user` and `y` [1]."""
    draw = np.random.default_rng(5)
    items = draw.zipf(1.3, size=(EXAMPLES, ITEMS)) % 997 * 7919 - 40000
    users = np.arange(EXAMPLES) * 1000003 % 211
    return _dataset({"item": items, "user": users}, draw, seed)


def load_passing(seed: int) -> Dataset:
    """Returns examples with the features `item` [ITEMS] and `y` [1]. Keys come and go."""
    draw = np.random.default_rng(5)
    items = _passing(draw.zipf(1.5, size=(EXAMPLES, ITEMS)) % 97, every_step=7)
    return _dataset({"item": items * 7919}, draw, seed)


def load_passing_users(seed: int) -> Dataset:
    """Returns examples with the features `item` [ITEMS], `user` and `y` [1]. Keys of both come and go. All belong to a
    few buckets, so that keys often get rows that other keys have had."""
    draw = np.random.default_rng(5)
    items = _passing(draw.zipf(1.5, size=(EXAMPLES, ITEMS)) % 97, every_step=7)
    users = _passing(draw.integers(0, 40, EXAMPLES), every_step=5)
    return _dataset({"item": _crowded(items), "user": _crowded(users)}, draw, seed)


def _passing(numbers: np.ndarray, *, every_step: int) -> np.ndarray:
    """Returns numbers of examples that become larger with each step."""
    steps = np.arange(EXAMPLES) // BATCH * every_step
    return numbers + steps.reshape(-1, *[1] * (numbers.ndim - 1))


def _crowded(numbers: np.ndarray) -> np.ndarray:
    """Returns keys of a few buckets, one for each number."""
    # Of so many keys, about twice as many as are needed are in these buckets.
    candidates = np.arange((1 + numbers.max()) * 2 * BUCKETS // CROWDED_BUCKETS, dtype="uint64") * np.uint64(7919)
    crowded: np.ndarray = candidates[mixed(candidates) % BUCKETS < CROWDED_BUCKETS]
    return crowded[numbers]


def _dataset(keys: Mapping[str, np.ndarray], draw: np.random.Generator, seed: int) -> Dataset:
    arrays = {name: array.astype("int64") for name, array in keys.items()}
    arrays["y"] = draw.normal(size=(EXAMPLES, 1)).astype("float32")
    train = {name: array[:TRAINING_EXAMPLES] for name, array in arrays.items()}
    validation = {name: array[TRAINING_EXAMPLES:] for name, array in arrays.items()}
    return ArrayDataset(train=train, validation=validation, words_per_example=None, seed=seed)


def make_growing(capacity: int, overflow: str) -> keras.Model:
    """Returns a model with two tables that grow."""
    item, user = keras.Input([ITEMS], dtype="int64", name="item"), keras.Input([], dtype="int64", name="user")
    table = GrowingEmbedding(4, capacity, overflow=overflow, seed=3, name="items")
    users = GrowingEmbedding(2, 8192, seed=4, name="users")(user)
    both = keras.layers.Concatenate()([keras.layers.Flatten()(table(item)), users])
    model = keras.Model({"item": item, "user": user}, keras.layers.Dense(1)(both))
    model.compile("adam", "mse")
    return model


def make_passing(
    capacity: int, admit: dict[str, int] | None, evict: dict[str, int] | None, knows_optimizer: bool
) -> keras.Model:
    """Returns a model with a table that admits and evicts keys."""
    item = keras.Input([ITEMS], dtype="int64", name="item")
    table = GrowingEmbedding(4, capacity, admit=admit, evict=evict, seed=3, name="items")
    model = keras.Model({"item": item}, keras.layers.Dense(1)(keras.layers.Flatten()(table(item))))
    model.compile(OPTIMIZERS["adagrad"](), "mse")
    if knows_optimizer:
        table.set_optimizer(model.optimizer)
    return model


def make_two_passing(optimizer: str) -> keras.Model:
    """Returns a model with two tables: one admits and evicts keys, and some of its buckets are full; the other evicts
    keys. Its initial values are the same in every process."""
    item, user = keras.Input([ITEMS], dtype="int64", name="item"), keras.Input([], dtype="int64", name="user")
    rules: dict[str, Any] = {"admit": {"min_count": 2}, "evict": {"unused_steps": 2, "every_steps": 2}}
    items = GrowingEmbedding(4, 1024, overflow="shared", seed=3, **rules, name="items")
    users = GrowingEmbedding(2, 8192, seed=4, evict={"unused_steps": 1, "every_steps": 2}, name="users")
    both = keras.layers.Concatenate()([keras.layers.Flatten()(items(item)), users(user)])
    initial = keras.initializers.GlorotUniform(seed=2)
    model = keras.Model({"item": item, "user": user}, keras.layers.Dense(1, kernel_initializer=initial)(both))
    model.compile(OPTIMIZERS[optimizer](), "mse")
    model.optimizer.build(model.trainable_variables)
    for table in (items, users):
        table.set_optimizer(model.optimizer)
    return model


def make_step(training: bool) -> Callable[[Mapping[str, Any]], Any]:
    """Returns a training step with a tape."""
    table, dense = GrowingEmbedding(4, 16384, seed=3, name="items"), keras.layers.Dense(1)
    optimizer = keras.optimizers.SGD(0.1)

    def step(batch: Mapping[str, Any]) -> Any:
        with tf.GradientTape() as tape:
            rows = keras.ops.mean(table(batch["item"], training=training), axis=1)
            loss = tf.reduce_mean(tf.square(dense(rows) - batch["y"]))
        variables = [*table.trainable_variables, *dense.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step


def build_growing(features: Mapping[str, Any], optimizer: Any) -> dict[str, Any]:
    """Builds a graph with two lookups of a table in a step, and two others for validation."""
    v1 = tf.compat.v1

    def loss_of(training: bool) -> Any:
        table: dict[str, Any] = {"name": "items", "dim": 4, "capacity": 16384, "seed": 3, "training": training}
        items, users = growing_lookup(features["item"], **table), growing_lookup(features["user"], **table)
        return v1.reduce_mean(v1.square(v1.reduce_sum(items, [1, 2]) - v1.reduce_sum(users, 1) - features["y"][:, 0]))

    return _trained(loss_of, optimizer)


def build_passing(features: Mapping[str, Any], optimizer: Any) -> dict[str, Any]:
    """Builds a graph with a table that admits and evicts keys."""
    v1 = tf.compat.v1
    rules: dict[str, Any] = {"admit": {"min_count": 2}, "evict": {"unused_steps": 2, "every_steps": 1}}

    def loss_of(training: bool) -> Any:
        table: dict[str, Any] = {"name": "items", "dim": 4, "capacity": 16384, "seed": 3, "optimizer": optimizer}
        rows = growing_lookup(features["item"], training=training, **table, **rules)
        return v1.reduce_mean(v1.square(v1.reduce_sum(rows, [1, 2]) - features["y"][:, 0]))

    return _trained(loss_of, optimizer)


def _trained(loss_of: Callable[[bool], Any], optimizer: Any) -> dict[str, Any]:
    loss = loss_of(True)
    train_op = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op, "validation_loss": loss_of(False)}
