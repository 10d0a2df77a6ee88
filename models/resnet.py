"""A small residual network for images, with dense gradients. After "Deep Residual Learning" (He and others, 2016)."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

KEPT_OF_STATISTICS = 0.9  # decay per step of batch normalization's moving mean and variance
EPSILON = 1e-5


def build(
    features: dict[str, tf.Tensor],
    optimizer: tf.train.Optimizer,
    *,
    classes: int,
    filters: int,
    blocks_per_stage: int,
) -> dict[str, Any]:
    """Add the model to the default graph and return its losses and train op.

    `features`: `image`, float32 [batch, size, size, channels], and `label`, int32 [batch], below `classes`. The model
    has three stages of `blocks_per_stage` blocks, with `filters`, 2 × `filters` and 4 × `filters` filters. The second
    and third stages halve the image size. With 16 filters and 3 blocks, this is the paper's ResNet-20.

    Returns a dict with these entries:

    - `loss`: the batch's mean cross entropy, a float32 scalar in nats.
    - `validation_loss`: the same with the moving statistics instead of the batch's.
    - `train_op` and `validation_metric`.
    - `outputs`: the served model's outputs for `image`. `label`, int32 [batch], is the most probable class, and
      `probability`, float32 [batch], is its probability.
    """
    images, labels = features["image"], features["label"]
    statistics: list[tf.Operation] = []
    logits = run(images, classes, filters, blocks_per_stage, statistics)
    loss = tf.reduce_mean(cross_entropy(logits, labels), name="loss")
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        served = run(images, classes, filters, blocks_per_stage)
    return {
        "loss": loss,
        "train_op": tf.group(train_op, *statistics),
        "validation_loss": tf.reduce_mean(cross_entropy(served, labels), name="validation_loss"),
        "validation_metric": "perplexity",
        "outputs": most_probable(served),
    }


def run(
    images: tf.Tensor,
    classes: int,
    filters: int,
    blocks_per_stage: int,
    statistics: list[tf.Operation] | None = None,
) -> tf.Tensor:
    """Return logits [batch, classes].

    `statistics` collects the updates of batch normalization's moving statistics. If it is None, batch normalization
    uses the moving statistics.
    """
    with tf.variable_scope("first"):
        flow = tf.nn.relu(normalize(convolve(images, filters, size=3), statistics))
    for stage in range(3):
        for block in range(blocks_per_stage):
            with tf.variable_scope(f"stage_{stage}_{block}"):
                stride = 2 if stage > 0 and block == 0 else 1
                flow = residual(flow, filters * 2**stage, stride, statistics)
    flow = tf.reduce_mean(flow, axis=[1, 2])
    weights = tf.get_variable("weights", [int(flow.shape[1]), classes])
    biases = tf.get_variable("biases", [classes], initializer=tf.zeros_initializer())
    return tf.matmul(flow, weights) + biases


def residual(flow: tf.Tensor, filters: int, stride: int, statistics: list[tf.Operation] | None) -> tf.Tensor:
    """Return a block's output plus its input. If the number of filters changes, the shortcut is a 1 × 1 convolution."""
    with tf.variable_scope("a"):
        inner = tf.nn.relu(normalize(convolve(flow, filters, size=3, stride=stride), statistics))
    with tf.variable_scope("b"):
        inner = normalize(convolve(inner, filters, size=3), statistics)
    if flow.shape[-1] != filters:
        with tf.variable_scope("around"):
            flow = normalize(convolve(flow, filters, size=1, stride=stride), statistics)
    return tf.nn.relu(inner + flow)


def convolve(flow: tf.Tensor, filters: int, *, size: int, stride: int = 1) -> tf.Tensor:
    """Return a `size` × `size` convolution without biases, because batch normalization adds biases."""
    kernel = tf.get_variable(
        "kernel", [size, size, int(flow.shape[-1]), filters], initializer=tf.variance_scaling_initializer(scale=2.0)
    )
    return tf.nn.conv2d(flow, kernel, strides=stride, padding="SAME")


def normalize(flow: tf.Tensor, statistics: list[tf.Operation] | None) -> tf.Tensor:
    """Return `flow` [batch, height, width, filters] with mean 0 and variance 1, then scaled and shifted."""
    filters = [int(flow.shape[-1])]
    with tf.variable_scope("norm"):
        scale = tf.get_variable("scale", filters, initializer=tf.ones_initializer())
        shift = tf.get_variable("shift", filters, initializer=tf.zeros_initializer())
        mean = tf.get_variable("mean", filters, initializer=tf.zeros_initializer(), trainable=False)
        variance = tf.get_variable("variance", filters, initializer=tf.ones_initializer(), trainable=False)
    if statistics is None:
        return tf.nn.batch_normalization(flow, mean, variance, shift, scale, EPSILON)
    normalized, batch_mean, batch_variance = tf.nn.fused_batch_norm(flow, scale, shift, epsilon=EPSILON)
    for moving, measured in ((mean, batch_mean), (variance, batch_variance)):
        statistics.append(tf.assign_sub(moving, (1 - KEPT_OF_STATISTICS) * (moving - measured)).op)
    return normalized


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return each example's cross entropy, [batch]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def most_probable(logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the most probable `label` and its `probability`, both [batch]."""
    return {
        "label": tf.argmax(logits, axis=1, output_type=tf.int32),
        "probability": tf.reduce_max(tf.nn.softmax(logits), axis=1),
    }
