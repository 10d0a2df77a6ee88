"""One dictionary of all blocks has the strings in the order in which they first appear, whatever their lengths."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from parallax_runner.data.table.merged_dictionary import merged

FIXED = [["aa", "bb"], [], ["", "bb", "cc"], ["dd"]]
CASES = {
    "of one length": FIXED,
    "of one length, with zeros": [["a\x00", "aa"], ["\x00a", "a\x00"]],
    "of 8 bytes": [["12345678", "87654321"], ["", "87654321", "abcdefgh"]],
    "of another length in one block": [*FIXED, ["eee", "", "bb"]],
    "of another length in each block": [["a", "b"], ["aa"], ["b", "aa", "", "c"]],
    "of many bytes": [["123456789"], ["123456789", "12345678x"]],
    "none": [[], []],
    "only an empty one": [[""], []],
}


@pytest.mark.parametrize("case", CASES)
def test_strings_and_their_codes(case: str) -> None:
    blocks = CASES[case]
    words = list(dict.fromkeys(word for block in blocks for word in block if word))
    found = merged([pa.array(block, pa.binary()) for block in blocks])
    pieces = [found.data[start:end].tobytes().decode() for start, end in itertools.pairwise(found.offsets)]
    assert pieces == words
    assert found.offsets.dtype == np.int64
    codes = [one.tolist() for one in found.codes]
    assert codes == [[0, *(words.index(word) + 1 if word else 0 for word in block)] for block in blocks]
