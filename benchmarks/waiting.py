"""A model whose computation only waits, so that a step shows how much of its exchanges overlaps with computation.

Hosts that share the cores of one machine compute in turn, and an exchange that computation hides on separate machines
then costs time. Waits of several hosts overlap as computations on cores of their own do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import gen_experimental_dataset_ops  # dataset.experimental has no transformation that sleeps

from models.lm import lstm_variables

# The backward pass of matrix products takes twice as long as the forward pass.
BACKWARD_TO_FORWARD = 2.0
# The op that takes the element out of a dataset reads twice: the element, and that there is no other. Both reads sleep.
READS = 2
LAYERS = 2  # the LSTM and the softmax, which wait for equal times


class Waits(NamedTuple):
    """How long a layer waits in each pass."""

    forward_ms: float
    backward_ms: float

    @classmethod
    def of_step(cls, computing_ms: float) -> Waits:
        """Returns the waits of one of `LAYERS` layers in a step that computes for `computing_ms`."""
        forward_ms = computing_ms / LAYERS / (1 + BACKWARD_TO_FORWARD)
        return cls(forward_ms, BACKWARD_TO_FORWARD * forward_ms)


def build(
    features: dict[str, tf.Tensor],
    optimizer: tf.train.Optimizer,
    *,
    vocab_size: int,
    embedding_size: int,
    num_units: int,
    projection_size: int,
    num_sampled: int,
    computing_ms: float,
) -> dict[str, Any]:
    """Adds the model to the default graph and returns `loss`, `train_op` and `validation_loss`.

    Its variables, and the rows that a step touches, are those of `models.lm` (the same arguments). The gradients of the
    softmax's rows come after the softmax's wait in the backward pass. Those of the LSTM's weights and of the embedding
    come at the end. All waits of a step take `computing_ms`. The losses are float32 scalars: sums of mean squares.
    """
    waits = Waits.of_step(computing_ms)
    embedding = tf.get_variable("embedding", [vocab_size, embedding_size])
    lstm = lstm_variables(embedding_size, num_units, projection_size)
    softmax_w = tf.get_variable("softmax_w", [vocab_size, projection_size])
    softmax_b = tf.get_variable("softmax_b", [vocab_size], initializer=tf.zeros_initializer())

    inputs = tf.nn.embedding_lookup(embedding, features["words"])
    scale = tf.add_n([tf.reduce_mean(tf.square(weights)) for weights in lstm])
    (hidden,) = waiting([inputs * (1.0 + scale)], waits)
    ids = sampled_ids(features["next_words"], num_sampled, vocab_size)
    rows = [tf.nn.embedding_lookup(table, ids) for table in (softmax_w, softmax_b)]
    loss = tf.add_n([tf.reduce_mean(tf.square(tensor)) for tensor in waiting([hidden, *rows], waits)], name="loss")
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op, "validation_loss": loss}


def sampled_ids(next_words: tf.Tensor, num_sampled: int, vocab_size: int) -> tf.Tensor:
    """Returns the labels (int32 [batch, length]) and `num_sampled` words that are drawn log-uniformly by id, int64."""
    labels = tf.cast(tf.reshape(next_words, [-1, 1]), tf.int64)
    drawn = tf.random.log_uniform_candidate_sampler(labels, 1, num_sampled, unique=True, range_max=vocab_size)
    return tf.concat([tf.reshape(labels, [-1]), drawn.sampled_candidates], axis=0)


def waiting(tensors: Sequence[tf.Tensor], waits: Waits) -> list[tf.Tensor]:
    """Returns equal tensors that are there `forward_ms` after the last of `tensors`. Their gradients wait for
    `backward_ms`."""

    @tf.custom_gradient
    def passed(*given: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
        return late(given, waits.forward_ms), lambda *gradients: late(gradients, waits.backward_ms)

    return list(passed(*tensors))


def late(tensors: Sequence[tf.Tensor], wait_ms: float) -> list[tf.Tensor]:
    """Returns equal tensors that are there `wait_ms` after the last of `tensors`. A thread sleeps for so long.

    The wait is a call of a function, because the order of exchanges depends on the ops that take long, and a call of a
    function is one of them, like a matrix product.
    """
    call = tf.compat.v2.function(lambda *given: _slept(given, wait_ms))
    return list(call(*tensors))


def _slept(tensors: Sequence[tf.Tensor], wait_ms: float) -> list[tf.Tensor]:
    element = tf.data.Dataset.from_tensors(tuple(tensors))
    slept = gen_experimental_dataset_ops.sleep_dataset(
        element._variant_tensor,
        sleep_microseconds=tf.constant(round(1000 * wait_ms / READS), tf.int64),
        output_types=[tensor.dtype for tensor in tensors],
        output_shapes=[tensor.shape for tensor in tensors],
    )
    return list(
        tf.raw_ops.DatasetToSingleElement(
            dataset=slept,
            output_types=[tensor.dtype for tensor in tensors],
            output_shapes=[tensor.shape for tensor in tensors],
        )
    )
