"""Buckets, starts and initial rows depend on the key alone, and follow SplitMix64."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from parallax_runner.graph.growing.hashed_keys import BUCKETS, buckets_of, initial_rows, starts_of
from tests.growing_keys import bucket_of, initial_row, mixed

KEYS = [0, 1, -1, 2**63 - 1, -(2**63), 5, 1234567890123]


def test_splitmix64_follows_its_authors() -> None:
    """The first numbers that the authors' program prints for the seed 1234567."""
    gamma = 0x9E3779B97F4A7C15
    numbers = [mixed(1234567 + gamma * step) for step in range(1, 4)]
    assert numbers == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_buckets_and_starts() -> None:
    keys = tf.constant(KEYS, tf.int64)
    assert buckets_of(keys).numpy().tolist() == [bucket_of(key) for key in KEYS]
    assert starts_of(keys, 64).numpy().tolist() == [mixed(key) // BUCKETS % 64 for key in KEYS]


def test_initial_rows_in_any_subset() -> None:
    given = {"seed": 7, "columns": 5, "scale": 0.05}
    rows = initial_rows(tf.constant(KEYS, tf.int64), **given).numpy()
    assert rows.dtype == np.float32
    for number, key in enumerate(KEYS):
        np.testing.assert_array_equal(rows[number], initial_row(key, **given))
        np.testing.assert_array_equal(initial_rows(tf.constant([key], tf.int64), **given).numpy()[0], rows[number])


def test_initial_rows_are_uniform() -> None:
    rows = initial_rows(tf.range(4000, dtype=tf.int64), seed=3, columns=8, scale=0.5).numpy()
    assert -0.5 <= rows.min() < -0.499
    assert 0.499 < rows.max() < 0.5
    assert abs(rows.mean()) < 0.01
    np.testing.assert_allclose(rows.var(), 1 / 12, rtol=0.02)
    assert len(np.unique(rows)) > 0.99 * rows.size * (1 - rows.size / 2**25)


def test_other_seeds_give_other_rows() -> None:
    keys = tf.constant(KEYS, tf.int64)
    one, other = (initial_rows(keys, seed=seed, columns=2, scale=1.0).numpy() for seed in (1, 2))
    assert (one != other).all()
