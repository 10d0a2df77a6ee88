"""The strings of codes, as bytes, and their hashes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from parallax_runner.data.table.stored_table import Strings
from parallax_runner.process.tensorflow_import import import_tensorflow

CHUNK_STRINGS = 2**18  # strings that are objects of Python at the same time


def strings_of(strings: Strings, codes: np.ndarray | Sequence[int]) -> list[bytes]:
    """Returns the strings with these codes."""
    chosen = np.asarray(codes, dtype=np.int64)
    starts, ends = strings.offsets[chosen].tolist(), strings.offsets[chosen + 1].tolist()
    data = np.ascontiguousarray(strings.data).data
    return [bytes(data[start:end]) for start, end in zip(starts, ends, strict=True)]


def hashed(strings: Strings, buckets: int) -> np.ndarray:
    """Returns the hash of each code's string below `buckets`, int64 [codes], as tf.strings.to_hash_bucket_fast computes
    it. Imports TensorFlow."""
    import_tensorflow()
    tensorflow: Any = sys.modules["tensorflow"]
    found = np.empty(strings.count, dtype=np.int64)
    for start in range(0, strings.count, CHUNK_STRINGS):
        codes = np.arange(start, min(start + CHUNK_STRINGS, strings.count))
        found[codes] = _hash(tensorflow, strings_of(strings, codes), buckets)
    return found


def _hash(tensorflow: Any, words: list[bytes], buckets: int) -> np.ndarray:
    """Returns hashes, in a session of its own, since a worker's process has no eager execution."""
    v1 = tensorflow.compat.v1
    with v1.Graph().as_default():
        given = v1.placeholder(v1.string, [None])
        made = v1.strings.to_hash_bucket_fast(given, buckets)
        with v1.Session(config=v1.ConfigProto(device_count={"GPU": 0})) as session:
            array: np.ndarray = session.run(made, {given: np.array(words, dtype=object)})
    return array
