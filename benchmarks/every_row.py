"""A model whose batch may touch every row of a table. It computes very little, so row exchange dominates its steps."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf


def build(
    features: dict[str, tf.Tensor], optimizer: tf.train.Optimizer, *, vocab_size: int, width: int
) -> dict[str, Any]:
    """Adds the model to the default graph and returns `loss`, `train_op` and `validation_loss`.

    The loss moves the rows of `words`, int32 [batch, length], in a table, float32 [vocab_size, width], towards zero.
    Both losses are float32 scalars: the mean of the squared values in these rows, times `vocab_size`.
    """
    table = tf.get_variable("table", [vocab_size, width], initializer=tf.random_normal_initializer(stddev=0.1))
    rows = tf.nn.embedding_lookup(table, tf.reshape(features["words"], [-1]))
    loss = vocab_size * tf.reduce_mean(tf.square(rows))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op, "validation_loss": loss}
