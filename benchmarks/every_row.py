"""A model whose batch may touch every row of a table, with hardly any computing: the row exchange dominates its
steps."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf


def build(
    features: dict[str, tf.Tensor], optimizer: tf.train.Optimizer, *, vocab_size: int, width: int
) -> dict[str, Any]:
    """Adds the model to the default graph and returns `loss`, `train_op` and `validation_loss`.

    `words`, int32 [batch, length], pull their rows of a table, float32 [vocab_size, width], towards zero. Losses are
    float32 scalars, means over the batch.
    """
    table = tf.get_variable("table", [vocab_size, width], initializer=tf.random_normal_initializer(stddev=0.1))
    rows = tf.nn.embedding_lookup(table, tf.reshape(features["words"], [-1]))
    loss = vocab_size * tf.reduce_mean(tf.square(rows))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op, "validation_loss": loss}
