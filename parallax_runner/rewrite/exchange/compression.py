"""What travels in half the bytes: float32 and float64 values are rounded to 16 bits where they are sent.

Sums are taken in the values' own dtype, after each addend has been rounded once: rounding does not grow with the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.plan.comm_options import Compression
from parallax_runner.rewrite.exchange.sent import Sent
from parallax_runner.rewrite.state import Rewrite

DTYPES = {Compression.FP16: tf.float16, Compression.BF16: tf.bfloat16}
# What carries bfloat16 bits through collectives, which do not know it and only move it.
CARRIER = tf.float16


def half_dtype(rewrite: Rewrite, dtype: tf.DType) -> tf.DType | None:
    """What values of `dtype` are sent as; None where as they are."""
    if rewrite.plan.options.compression is Compression.OFF or dtype not in (tf.float32, tf.float64):
        return None
    return DTYPES[rewrite.plan.options.compression]


def compress(rewrite: Rewrite, tensor: tf.Tensor) -> tf.Tensor:
    """What is sent for `tensor`, of the same shape."""
    half = half_dtype(rewrite, tensor.dtype)
    if half is None:
        return tensor
    rounded = tf.cast(tensor, half)
    return rounded if half == CARRIER else tf.bitcast(rounded, CARRIER)


def decompress(rewrite: Rewrite, tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What was sent by `compress`, as `dtype` again."""
    half = half_dtype(rewrite, dtype)
    if half is None:
        return tensor
    return tf.cast(tensor if half == CARRIER else tf.bitcast(tensor, half), dtype)


def rounded_means(
    rewrite: Rewrite, values: Sequence[tf.Tensor], variables: Sequence[str], name: str
) -> list[tf.Tensor]:
    """Means over ranks of tensors with static shapes, each for one of `variables`, in two exchanges of as many bytes as
    a ring has for 16 bits.

    Each rank sums one part of what all send, and sends its mean to all: two roundings a value, where a ring of 16-bit
    sums has one a rank (Rabenseifner 2004 for the scheme: reduce-scatter, then allgather).
    """
    from parallax_runner.rewrite.exchange import collectives

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
        # Of which variables a rank sends means is a matter of its number; over all ranks each has this share.
        rewrite.sent += [Sent(sent, (ranks - 1) / ranks, variable, size), Sent(mean, ranks - 1, variable, size / ranks)]
    return [
        tf.cast(tf.reshape(part, value.shape), value.dtype)
        for part, value in zip(tf.split(means[: sum(sizes)], sizes), values, strict=True)
    ]
