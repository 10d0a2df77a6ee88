"""Draws the numbers from position n on of a random op, without the numbers before them.

TensorFlow's random ops use the generator Philox, whose numbers can be computed from any position on (Salmon and others,
"Parallel random numbers: as easy as 1, 2, 3", 2011). A stateful op draws the numbers that the stateless op draws with
the key `[seed]` and the counter `[0, seed2]`. A step of the counter gives 16 bytes: four numbers, or two of 8 bytes.
Truncated normal numbers are drawn until one is in range, so each group of numbers reserves several steps.
"""

from __future__ import annotations

import math

import tensorflow.compat.v1 as tf

from parallax_runner.analysis.initial_rows import ALGORITHM, COUNTER, KEY, PHILOX, STREAM_DRAWS

# How many steps of the counter the numbers of one group reserve, for each number in the group.
RESERVED_FOR_TRUNCATED = 64
STATELESS_OP = {
    "RandomUniform": tf.raw_ops.StatelessRandomUniformV2,
    "RandomStandardNormal": tf.raw_ops.StatelessRandomNormalV2,
    "TruncatedNormal": tf.raw_ops.StatelessTruncatedNormalV2,
    "StatelessRandomUniformV2": tf.raw_ops.StatelessRandomUniformV2,
    "StatelessRandomNormalV2": tf.raw_ops.StatelessRandomNormalV2,
    "StatelessTruncatedNormalV2": tf.raw_ops.StatelessTruncatedNormalV2,
}


def numbers_of_group(dtype: tf.DType) -> int:
    """Returns how many numbers of this dtype one step of the counter gives."""
    return 2 if dtype.size == 8 else 4


def drawn_rows(op: tf.Operation, first_row: tf.Tensor, rows: tf.Tensor, *, rows_at_once: int) -> tf.Tensor:
    """Returns the rows [first_row, first_row + rows) of what the random op `op` draws first.

    `first_row` and `rows` are int64 scalars. `first_row` is a multiple of `rows_at_once`.
    """
    row_shape = op.outputs[0].shape.as_list()[1:]
    row_length = math.prod(row_shape)
    group = numbers_of_group(op.outputs[0].dtype)
    first, count = first_row * row_length, rows * row_length
    # The draw begins with a whole group, so it can begin with a few numbers of the row before.
    is_aligned = rows_at_once * row_length % group == 0
    before = tf.zeros([], tf.int64) if is_aligned else first % group
    numbers = _drawn(op, first // group, count + before)
    kept = numbers if is_aligned else numbers[before:]
    return tf.reshape(kept, tf.concat([[rows], tf.constant(row_shape, tf.int64)], axis=0))


def _drawn(op: tf.Operation, first_group: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    dtype = op.outputs[0].dtype
    is_truncated = "Truncated" in op.type
    steps = RESERVED_FOR_TRUNCATED * numbers_of_group(dtype) if is_truncated else 1
    skipped = tf.cast(first_group * steps, tf.uint64)
    if op.type in STREAM_DRAWS:
        key = tf.constant([op.get_attr("seed")], tf.uint64)
        second, algorithm = tf.constant(op.get_attr("seed2"), tf.uint64), tf.constant(PHILOX)
    else:
        key, second, algorithm = op.inputs[KEY], op.inputs[COUNTER][1], op.inputs[ALGORITHM]
    counter = tf.stack([skipped, second])
    return STATELESS_OP[op.type](shape=[count], key=key, counter=counter, alg=algorithm, dtype=dtype)
