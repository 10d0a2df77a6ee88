"""The words of texts, with pyarrow. `columns/text.py` computes the same with TensorFlow for a served model."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parallax_runner.data.table.stored_table import CHARACTER, LOWERS, STRIPS, Words

# The punctuation that Keras' TextVectorization strips. Both pyarrow and TensorFlow match with RE2.
PUNCTUATION = r'[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']'
_CONTINUES_CHARACTER = 0b10000000  # the two highest bits of a byte that does not begin a character of UTF-8


def words_of_texts(texts: pa.Array, rule: Words) -> tuple[np.ndarray, pa.Array]:
    """Returns the number of words in each text, int64 [texts], and all words. A missing text has no words. Some words
    can be empty. `texts` is valid UTF-8."""
    filled = pc.fill_null(texts, "")
    if rule.standardize in LOWERS:
        filled = pc.ascii_lower(filled)  # other letters stay, as in Keras
    if rule.standardize in STRIPS:
        filled = pc.replace_substring_regex(filled, PUNCTUATION, "")
    if rule.split == CHARACTER:
        return _characters(filled)
    lists = pc.ascii_split_whitespace(filled)
    return pc.list_value_length(lists).cast(pa.int64()).to_numpy(), lists.flatten()


def _characters(texts: pa.Array) -> tuple[np.ndarray, pa.Array]:
    lengths = pc.utf8_length(texts).cast(pa.int64()).to_numpy()
    data = _bytes_of(texts.cast(pa.large_string()))
    begins = (data & 0b11000000) != _CONTINUES_CHARACTER
    offsets = np.append(np.flatnonzero(begins), len(data)).astype(np.int64)
    words = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))
    return lengths, words


def _bytes_of(texts: pa.LargeStringArray) -> np.ndarray:
    """Returns the bytes of all texts, uint8."""
    _, offsets_buffer, data = texts.buffers()
    if data is None or len(texts) == 0:
        return np.empty(0, dtype=np.uint8)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)
    first, end = offsets[texts.offset], offsets[texts.offset + len(texts)]
    return np.frombuffer(data, dtype=np.uint8)[first:end]
