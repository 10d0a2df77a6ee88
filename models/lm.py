"""A word language model with an embedding, an LSTM with projection, and a sampled softmax.

A small version of the model in "Exploring the Limits of Language Modeling" (Jozefowicz and others, 2016), which the
Parallax paper (Kim and others, EuroSys 2019) uses for its measurements. Its three tables over the vocabulary have
sparse gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.python.ops.variables import PartitionedVariable  # not exported by any public module


class LSTMVariables(NamedTuple):
    """One layer's weights. The order of the gates is input, candidate, forget, output."""

    kernel: tf.Variable  # [embedding_size + projection_size, 4 * num_units]
    bias: tf.Variable  # [4 * num_units]
    projection: tf.Variable  # [num_units, projection_size]


def build(
    features: dict[str, tf.Tensor],
    optimizer: tf.train.Optimizer,
    *,
    vocab_size: int,
    embedding_size: int,
    num_units: int,
    projection_size: int,
    num_sampled: int | None,
    keep_prob: float = 1.0,
    max_grad_norm: float = 10.0,
) -> dict[str, Any]:
    """Add the model to the default graph and return its losses and train op.

    `features`: `words` and `next_words`, int32 [batch, sequence_length], below `vocab_size`. `num_sampled` is the
    number of words that the sampled softmax draws, or None for the full softmax, which draws nothing. `keep_prob` is
    the fraction of activations that dropout keeps. `max_grad_norm` bounds the global norm of the LSTM's gradients.

    Returns a dict with these entries:

    - `loss`: the mean cross entropy over all words, or the sampled softmax's estimate of it, a float32 scalar in nats.
    - `validation_loss`: the full softmax's mean cross entropy over all words, a float32 scalar in nats.
    - `train_op`.
    - `validation_metric`: the name of exp(validation_loss).
    - `outputs`: the served model's outputs for `words`. `next_word`, int32 [batch, sequence_length], is the most
      probable next word at each position. `log_probability`, float32 of the same shape, is its log probability in nats.
    """
    words, next_words = features["words"], features["next_words"]
    sequence_length = int(words.shape[1])

    embedding = tf.get_variable(
        "embedding", [vocab_size, embedding_size], initializer=tf.random_uniform_initializer(-0.1, 0.1)
    )
    lstm = lstm_variables(embedding_size, num_units, projection_size)
    softmax_w = tf.get_variable(
        "softmax_w", [vocab_size, projection_size], initializer=tf.random_uniform_initializer(-0.1, 0.1)
    )
    softmax_b = tf.get_variable("softmax_b", [vocab_size], initializer=tf.zeros_initializer())

    inputs = tf.nn.embedding_lookup(embedding, words)
    outputs = run_lstm(lstm, inputs, keep_prob)
    if num_sampled is None:
        loss = full_loss(full_logits(softmax_w, softmax_b, outputs), next_words, name="loss")
    else:
        loss = sampled_loss(softmax_w, softmax_b, outputs, next_words, num_sampled, vocab_size)

    # As in the paper, gradients are those of the loss summed over a window's words and averaged over the batch.
    tables = [piece for table in (embedding, softmax_w, softmax_b) for piece in pieces(table)]
    gradients = tf.gradients(loss * sequence_length, [*tables, *lstm])
    clipped, _ = tf.clip_by_global_norm(gradients[len(tables) :], max_grad_norm)
    train_op = optimizer.apply_gradients(
        zip([*gradients[: len(tables)], *clipped], [*tables, *lstm], strict=True),
        global_step=tf.train.get_or_create_global_step(),
    )

    kept = outputs if keep_prob == 1.0 else run_lstm(lstm, inputs, keep_prob=1.0)
    logits = full_logits(softmax_w, softmax_b, kept)
    return {
        "loss": loss,
        "train_op": train_op,
        "validation_loss": full_loss(logits, next_words, name="validation_loss"),
        "validation_metric": "perplexity",
        "outputs": most_probable(logits),
    }


def lstm_variables(input_size: int, num_units: int, projection_size: int) -> LSTMVariables:
    """Create the weights of one LSTM layer with projection."""
    with tf.variable_scope("lstm"):
        return LSTMVariables(
            kernel=tf.get_variable("kernel", [input_size + projection_size, 4 * num_units]),
            bias=tf.get_variable("bias", [4 * num_units], initializer=tf.zeros_initializer()),
            projection=tf.get_variable("projection", [num_units, projection_size]),
        )


def run_lstm(lstm: LSTMVariables, inputs: tf.Tensor, keep_prob: float) -> list[tf.Tensor]:
    """Run the LSTM over `inputs` [batch, sequence_length, input_size] from a zero state.

    Returns the projected output of each step, [batch, projection_size], with dropout on the layer's inputs and outputs.
    """
    sequence_length = int(inputs.shape[1])
    # A served model accepts batches of any size.
    batch = tf.shape(inputs)[0] if inputs.shape[0] is None else int(inputs.shape[0])
    num_units, projection_size = lstm.projection.shape.as_list()
    cell = tf.zeros([batch, num_units])
    output = tf.zeros([batch, projection_size])
    outputs = []
    for step_inputs in tf.unstack(dropout(inputs, keep_prob), num=sequence_length, axis=1):
        gates = tf.matmul(tf.concat([step_inputs, output], axis=1), lstm.kernel) + lstm.bias
        entering, candidate, kept, leaving = tf.split(gates, 4, axis=1)
        # Adding 1.0 opens the forget gate initially, so gradients flow back through the window.
        cell = tf.sigmoid(kept + 1.0) * cell + tf.sigmoid(entering) * tf.tanh(candidate)
        output = tf.matmul(tf.sigmoid(leaving) * tf.tanh(cell), lstm.projection)
        outputs.append(dropout(output, keep_prob))
    return outputs


def dropout(activations: tf.Tensor, keep_prob: float) -> tf.Tensor:
    """Return activations of the same shape. If nothing is dropped, the graph has no random op."""
    return activations if keep_prob == 1.0 else tf.nn.dropout(activations, rate=1.0 - keep_prob)


def pieces(variable: tf.Variable) -> list[tf.Variable]:
    """Return the pieces of a variable that a scope's partitioner has split, or a list with the unsplit variable."""
    return list(variable) if isinstance(variable, PartitionedVariable) else [variable]


def whole(variable: tf.Variable) -> tf.Tensor:
    """Return all rows of a variable in the order of lookup ids. Ids are distributed round robin over the pieces."""
    if isinstance(variable, PartitionedVariable):
        return tf.nn.embedding_lookup(variable, tf.range(variable.shape[0]))
    return tf.convert_to_tensor(variable)


def sampled_loss(
    softmax_w: tf.Variable,
    softmax_b: tf.Variable,
    outputs: list[tf.Tensor],
    next_words: tf.Tensor,
    num_sampled: int,
    vocab_size: int,
) -> tf.Tensor:
    """Estimate the mean cross entropy with `num_sampled` words, drawn log-uniformly by id."""
    if num_sampled > vocab_size:
        raise ValueError(
            f"model.num_sampled={num_sampled} distinct words cannot be drawn from data.vocab_size={vocab_size}"
        )
    losses = tf.nn.sampled_softmax_loss(
        weights=softmax_w,
        biases=softmax_b,
        labels=tf.reshape(tf.transpose(next_words), [-1, 1]),
        inputs=tf.concat(outputs, axis=0),
        num_sampled=num_sampled,
        num_classes=vocab_size,
    )
    return tf.reduce_mean(losses, name="loss")


def full_logits(softmax_w: tf.Variable, softmax_b: tf.Variable, outputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return the logits over the whole vocabulary, [batch, vocab_size], as one tensor per step to limit memory use."""
    weights, biases = whole(softmax_w), whole(softmax_b)
    return [tf.matmul(output, weights, transpose_b=True) + biases for output in outputs]


def full_loss(logits: list[tf.Tensor], next_words: tf.Tensor, name: str) -> tf.Tensor:
    """Compute the mean cross entropy over the whole vocabulary. `name` is the name of the op."""
    losses = [
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=step_words, logits=step_logits)
        for step_logits, step_words in zip(logits, tf.unstack(next_words, axis=1), strict=True)
    ]
    return tf.reduce_mean(tf.stack(losses), name=name)


def most_probable(logits: list[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return the most probable `next_word` at each step and its `log_probability`, both [batch, sequence_length]."""
    words = [tf.argmax(step, axis=1, output_type=tf.int32) for step in logits]
    log_probabilities = [tf.reduce_max(step, axis=1) - tf.reduce_logsumexp(step, axis=1) for step in logits]
    return {"next_word": tf.stack(words, axis=1), "log_probability": tf.stack(log_probabilities, axis=1)}
