"""Numbers that depend on a key alone: its bucket, where the search for it begins, and its initial row.

All of them come from SplitMix64 (Steele, Lea and Flood, 2014), in arithmetic modulo 2^64. The results are equal in
every process and for any subset of the keys.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

BUCKETS = 1024
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_BUCKET_BITS = 10
_FIRST_FACTOR, _SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# A float32 has 24 bits of precision, so the 24 highest bits become a number in [0, 1) without rounding.
_FRACTION_BITS = 24


def buckets_of(keys: Any) -> Any:
    """Returns the bucket of each key (int64 [n])."""
    return tf.bitcast(tf.bitwise.bitwise_and(_mixed(_unsigned(keys)), _constant(BUCKETS - 1)), tf.int64)


def starts_of(keys: Any, positions: int) -> Any:
    """Returns where the search for each key begins in its bucket (int64 [n]), among `positions`, a power of two."""
    hashed = tf.bitwise.right_shift(_mixed(_unsigned(keys)), _constant(_BUCKET_BITS))
    return tf.bitcast(tf.bitwise.bitwise_and(hashed, _constant(positions - 1)), tf.int64)


def initial_rows(keys: Any, *, seed: int, columns: int, scale: float) -> Any:
    """Returns the initial rows of keys (float32 [n, columns]), uniform in [-scale, scale).

    A value depends only on the seed, the key and the column.
    """
    of_key = _mixed(_unsigned(keys) + _mixed(_constant(seed)))
    steps = tf.range(1, columns + 1, dtype=tf.int64)
    mixed = _mixed(of_key[:, tf.newaxis] + _unsigned(steps)[tf.newaxis, :] * _constant(GOLDEN_GAMMA))
    highest = tf.bitwise.right_shift(mixed, _constant(64 - _FRACTION_BITS))
    fraction = tf.cast(tf.bitcast(highest, tf.int64), tf.float32) * tf.constant(2.0**-_FRACTION_BITS)
    return (2 * fraction - 1) * tf.constant(scale, tf.float32)


def _mixed(numbers: Any) -> Any:
    """Returns the output function of SplitMix64 (uint64)."""
    numbers = (numbers ^ tf.bitwise.right_shift(numbers, _constant(30))) * _constant(_FIRST_FACTOR)
    numbers = (numbers ^ tf.bitwise.right_shift(numbers, _constant(27))) * _constant(_SECOND_FACTOR)
    return numbers ^ tf.bitwise.right_shift(numbers, _constant(31))


def _unsigned(numbers: Any) -> Any:
    return tf.bitcast(numbers, tf.uint64)


def _constant(number: int) -> Any:
    return tf.constant(number % 2**64, tf.uint64)
