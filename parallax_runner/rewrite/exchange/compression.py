"""Compression: rounds float32 and float64 values to 16 bits before they are sent.

Sums use the original dtype, and each addend is rounded only once, so the rounding error does not grow with the number
of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.plan.comm_options import Compression
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.rewrite_state import Rewrite

DTYPES = {Compression.FP16: tf.float16, Compression.BF16: tf.bfloat16}
# The dtype that carries bfloat16 bits through collectives, which do not support bfloat16.
CARRIER = tf.float16


def half_dtype(rewrite: Rewrite, dtype: tf.DType) -> tf.DType | None:
    """Returns the wire dtype of values of `dtype`, or None if they are not compressed."""
    if rewrite.plan.options.compression is Compression.OFF or dtype not in (tf.float32, tf.float64):
        return None
    return DTYPES[rewrite.plan.options.compression]


def compress(rewrite: Rewrite, tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor of the same shape, which is sent in place of `tensor`."""
    half = half_dtype(rewrite, tensor.dtype)
    if half is None:
        return tensor
    rounded = tf.cast(tensor, half)
    return rounded if half == CARRIER else tf.bitcast(rounded, CARRIER)


def decompress(rewrite: Rewrite, tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Converts the result of `compress` back to `dtype`."""
    half = half_dtype(rewrite, dtype)
    if half is None:
        return tensor
    return tf.cast(tensor if half == CARRIER else tf.bitcast(tensor, half), dtype)


def rounded_means(
    rewrite: Rewrite, values: Sequence[tf.Tensor], variables: Sequence[str], name: str
) -> list[tf.Tensor]:
    """Returns the means over ranks of tensors with static shapes. `variables` names the variable of each tensor.

    Two exchanges move as many bytes as a ring allreduce of 16-bit values. Each rank sums its own part of the tensors
    over all ranks, and sends the means of this part to all ranks (reduce-scatter, then allgather: Rabenseifner 2004).
    Each value is rounded twice. A ring allreduce with 16-bit sums would round each value once per rank.
    """
    from parallax_runner.collectives import ops as collectives

    ranks, dtype = rewrite.plan.workers, values[0].dtype
    sizes = [value.shape.num_elements() or 0 for value in values]
    part_size = -(-sum(sizes) // ranks)
    padding_size = part_size * ranks - sum(sizes)
    padding = tf.zeros([padding_size], dtype)
    flat = tf.concat([*(tf.cast(tf.reshape(value, [-1]), dtype) for value in values), padding], axis=0)
    sent = compress(rewrite, flat)
    came, _ = collectives.all_to_all(sent, tf.fill([ranks], part_size), name=f"{name}/parts")
    parts = tf.reshape(decompress(rewrite, came, dtype), [ranks, part_size])
    mean = compress(rewrite, tf.reduce_sum(parts, axis=0) / tf.cast(ranks, dtype))
    means = decompress(rewrite, collectives.concat_over_ranks(mean, name=f"{name}/means"), dtype)
    for variable, size in [*zip(variables, sizes, strict=True), (None, padding_size)]:
        # Each rank sends the means of different variables, so the bytes are counted as the average over all ranks.
        rewrite.sent += [Sent(sent, (ranks - 1) / ranks, variable, size), Sent(mean, ranks - 1, variable, size / ranks)]
    return [
        tf.cast(tf.reshape(part, value.shape), value.dtype)
        for part, value in zip(tf.split(means[: sum(sizes)], sizes), values, strict=True)
    ]
