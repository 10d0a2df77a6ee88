"""Rows of several shapes and dtypes in one message."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.routes.alltoall.mixed_message import MixedMessage

RANKS = 3
COUNTS = np.array([[2, 0, 1], [0, 3, 1], [1, 1, 0]], np.int32)  # rows by rank and kind
KINDS = {
    "one dtype": (("float32", (2,)), ("float32", ()), ("float32", (1, 3))),
    "64 and 32 bits": (("float64", (2,)), ("float32", ()), ("float64", ())),
    "64, 32 and 16 bits": (("float64", (2, 2)), ("bfloat16", (3,)), ("float32", ())),
    "two dtypes of 16 bits": (("bfloat16", (2,)), ("float16", ()), ("bfloat16", (1,))),
    "one byte": (("uint8", ()), ("float32", (2,)), ("int64", ())),
}


def rows_of(dtype: str, shape: tuple[int, ...], kind: int) -> np.ndarray:
    values = np.random.default_rng(kind).normal(size=(COUNTS[:, kind].sum(), *shape)) * 50
    return np.abs(values).astype(tf.as_dtype(dtype).as_numpy_dtype)


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_rows_come_back_with_the_same_bits(kinds: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    rows = [rows_of(dtype, shape, kind) for kind, (dtype, shape) in enumerate(kinds)]
    with tf.Graph().as_default(), tf.Session() as session:
        given = [tf.placeholder(dtype, [None, *shape]) for dtype, shape in kinds]
        mixed = MixedMessage(given, RANKS)
        message = mixed.joined(given, tf.constant(COUNTS))
        found = mixed.split(message, tf.constant(COUNTS))
        assert [one.shape.as_list()[1:] for one in found] == [one.shape.as_list()[1:] for one in given]
        sent, *came = session.run([message, *found], dict(zip(given, rows, strict=True)))
    assert [one.dtype for one in came] == [one.dtype for one in rows]
    assert [one.tobytes() for one in came] == [one.tobytes() for one in rows]
    by_rank = [np.split(of_kind, np.cumsum(COUNTS[:-1, kind])) for kind, of_kind in enumerate(rows)]
    assert sent.tobytes() == b"".join(of_kind[rank].tobytes() for rank in range(RANKS) for of_kind in by_rank)


def test_the_widths_are_those_of_the_message() -> None:
    with tf.Graph().as_default():
        kinds = [tf.zeros([1, 2, 2], tf.float64), tf.zeros([1, 3], tf.bfloat16), tf.zeros([1])]
        mixed = MixedMessage(kinds, RANKS)
        assert (mixed.dtype, mixed.widths) == (tf.int16, [16, 3, 2])
        assert MixedMessage(kinds[:1] * 2, RANKS).dtype == tf.float64
