"""The strings of codes, as bytes, and their hashes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
    dtype = np.int32 if buckets < 2**31 else np.int64
    return _of_all(strings, dtype, lambda words: _imported().strings.to_hash_bucket_fast(words, buckets))


def fingerprints(strings: Strings) -> np.ndarray:
    """Returns the 64-bit fingerprint of each code's string as an integer, int64 [codes]. `tf.bitcast` of what
    `tf.fingerprint` returns is the same integer. Imports TensorFlow."""
    tensorflow = _imported()
    return _of_all(strings, np.int64, lambda words: tensorflow.bitcast(tensorflow.fingerprint(words), tensorflow.int64))


def _imported() -> Any:
    import_tensorflow()
    return sys.modules["tensorflow"]


def _of_all(strings: Strings, dtype: Any, function: Callable[[Any], Any]) -> np.ndarray:
    """Returns what an op computes of each code's string, [codes]. The session is its own, since a worker's process has
    no eager execution."""
    found = np.empty(strings.count, dtype)
    v1 = _imported().compat.v1
    with v1.Graph().as_default():
        given = v1.placeholder(v1.string, [None])
        made = function(given)
        with v1.Session(config=v1.ConfigProto(device_count={"GPU": 0})) as session:
            for start in range(0, strings.count, CHUNK_STRINGS):
                codes = np.arange(start, min(start + CHUNK_STRINGS, strings.count))
                found[codes] = session.run(made, {given: np.array(strings_of(strings, codes), dtype=object)})
    return found
