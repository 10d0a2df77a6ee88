"""The strings of a block have codes in the order in which they first appear, whatever their lengths."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from parallax_runner.data.table.local_dictionary import dtype_of_local_codes, numbered

CASES: dict[str, list[str | None]] = {
    "of one length": ["bb", "aa", None, "bb", "", "cc"],
    "of several lengths": ["b", "aa", None, "b", "", "c"],
    "of 8 bytes": ["12345678", "87654321", "12345678"],
    "of 9 bytes": ["123456789", "87654321x", "123456789"],
    "none": [],
    "missing ones": [None, ""],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sliced", [False, True])
def test_strings_and_their_codes(case: str, sliced: bool) -> None:
    words = CASES[case]
    given = pa.array([None, "x", *words], pa.string()).slice(2) if sliced else pa.array(words, pa.string())
    codes, dictionary = numbered(given)
    strings = ["", *dictionary.to_pylist()]
    assert [strings[code] for code in codes] == [word or "" for word in words]
    appeared = list(dict.fromkeys(word for word in words if word))
    assert [word for word in strings if word] == appeared
    assert codes.dtype == np.uint16


def test_the_dtype_of_many_codes() -> None:
    assert dtype_of_local_codes(2**16) == np.int32
