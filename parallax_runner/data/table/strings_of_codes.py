"""The strings of codes, as bytes, and their hashes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parallax_runner.data.table.stored_table import Strings
from parallax_runner.process.tensorflow_import import import_tensorflow

CHUNK_STRINGS = 2**18  # strings that are objects of Python at the same time


def strings_of(strings: Strings, codes: np.ndarray | Sequence[int]) -> list[bytes]:
    """Returns the strings with these codes."""
    chosen = np.asarray(codes, dtype=np.int64)
    starts, ends = strings.offsets[chosen].tolist(), strings.offsets[chosen + 1].tolist()
    data = np.ascontiguousarray(strings.data).data
    return [bytes(data[start:end]) for start, end in zip(starts, ends, strict=True)]


def by_count_then_bytes(counts: np.ndarray, strings: Strings, codes: np.ndarray) -> np.ndarray:
    """Returns the places of codes in order of their counts, the largest first. Of strings with the same count, the one
    with smaller bytes is first. Sorts tens of millions of strings without a Python object for each."""
    buffers = [None, *(pa.py_buffer(np.ascontiguousarray(one)) for one in (strings.offsets, strings.data))]
    words = pa.LargeBinaryArray.from_buffers(pa.large_binary(), strings.count, buffers)
    table = pa.table({"count": counts, "word": words.take(pa.array(codes))})
    order: np.ndarray = pc.sort_indices(table, [("count", "descending"), ("word", "ascending")]).to_numpy()
    return order.astype(np.int64)


def hashed(strings: Strings, buckets: int) -> np.ndarray:
    """Returns the hash of each code's string below `buckets`, as tf.strings.to_hash_bucket_fast computes it. Imports
    TensorFlow. The array [codes] is int32 if that is enough, since each process holds one for each column."""
    import_tensorflow()
    tensorflow: Any = sys.modules["tensorflow"]
    found = np.empty(strings.count, dtype=np.int32 if buckets < 2**31 else np.int64)
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
