"""Models with large tables, for measuring the memory of each process. Their features are those of `data=clicks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf


def make_model(*, cardinalities: Sequence[int], width: int) -> Any:
    """Returns a compiled Keras model with Adagrad. Each column of `categorical` has a table with rows of `width`.

    Keras is imported here, as many models do it: the tables must not become real in the driver for that.
    """
    from keras import layers

    return _compiled(cardinalities, lambda rows, name: layers.Embedding(rows, width, name=name))[0]


def make_growing(
    *, cardinalities: Sequence[int], width: int, admit: Mapping[str, int] | None, evict: Mapping[str, int] | None
) -> Any:
    """Returns the same model with tables that grow, of so many rows each."""
    from parallax_runner.layers import GrowingEmbedding

    rules: dict[str, Any] = {"overflow": "shared", "seed": 1, "admit": admit, "evict": evict}
    model, tables = _compiled(cardinalities, lambda rows, name: GrowingEmbedding(width, rows, **rules, name=name))
    for table in tables:
        table.set_optimizer(model.optimizer)
    return model


def _compiled(cardinalities: Sequence[int], make_table: Callable[[int, str], Any]) -> tuple[Any, list[Any]]:
    """Returns the model and its tables."""
    import keras
    from keras import layers, ops

    dense = keras.Input([13], name="dense")
    categorical = keras.Input([len(cardinalities)], name="categorical", dtype="int64")
    tables = [make_table(cardinality, f"table_{feature}") for feature, cardinality in enumerate(cardinalities)]
    rows = [table(categorical[:, feature]) for feature, table in enumerate(tables)]
    logit = layers.Dense(1, name="logit")(ops.concatenate([dense, *rows], axis=1))
    model = keras.Model({"dense": dense, "categorical": categorical}, logit, name="large_tables")
    model.compile(
        optimizer=keras.optimizers.Adagrad(0.05),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model, tables


def build(
    features: dict[str, tf.Tensor], optimizer: tf.train.Optimizer, *, cardinalities: Sequence[int], width: int
) -> dict[str, Any]:
    """Adds the same model to the default graph: a table with rows of `width` for each column of `categorical`."""
    tables = [
        tf.get_variable(
            f"table_{number}", [rows, width], initializer=tf.random_uniform_initializer(-0.05, 0.05), use_resource=True
        )
        for number, rows in enumerate(cardinalities)
    ]
    found = [tf.nn.embedding_lookup(table, features["categorical"][:, number]) for number, table in enumerate(tables)]
    inputs = tf.concat([features["dense"], *found], axis=1)
    weights = tf.get_variable("weights", [inputs.shape[1], 1], use_resource=True)
    logits = tf.matmul(inputs, weights)[:, 0]
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=features["label"], logits=logits))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op, "validation_loss": loss, "outputs": {"logit": logits}}
