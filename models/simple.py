"""Linear regression: y = w x + b, fitted to the mean squared error."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf


def build(features: dict[str, tf.Tensor], optimizer: tf.train.Optimizer) -> dict[str, Any]:
    """Add the model to the default graph and return its `loss`, `train_op`, `validation_loss` and `outputs`.

    `features`: `x` and `y`, float32 [batch]. The losses are float32 scalars, means over the batch. The output is
    `prediction`, the y of each x, float32 [batch].
    """
    w = tf.get_variable("w", shape=[], initializer=tf.zeros_initializer())
    b = tf.get_variable("b", shape=[], initializer=tf.zeros_initializer())
    prediction = w * features["x"] + b
    loss = tf.reduce_mean(tf.square(prediction - features["y"]), name="loss")
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op, "validation_loss": loss, "outputs": {"prediction": prediction}}
