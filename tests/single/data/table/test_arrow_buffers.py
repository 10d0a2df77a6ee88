"""Arrays of Arrow, also parts of them, as arrays of NumPy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from parallax_runner.data.table.arrow_buffers import array_of_integers, numbers_of, offsets_and_data

TYPES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


def test_numbers_of_a_part_of_an_array() -> None:
    array = pa.array([1, 2, 3, 4], pa.int64())
    assert numbers_of(array.slice(1, 2), np.dtype(np.int64)).tolist() == [2, 3]
    assert numbers_of(array.slice(4), np.dtype(np.int64)).tolist() == []


def test_integers_of_numpy() -> None:
    assert array_of_integers(np.array([3, -1])).to_pylist() == [3, -1]


@pytest.mark.parametrize("type_", TYPES)
def test_the_offsets_of_a_slice_begin_with_0(type_: pa.DataType) -> None:
    offsets, data = offsets_and_data(pa.array(["ab", "", "cde", "f"], type_).slice(1, 2))
    assert (offsets.tolist(), data.tobytes()) == ([0, 0, 3], b"cde")


@pytest.mark.parametrize("words", [[], [""], ["", ""]])
def test_strings_without_bytes(words: list[str]) -> None:
    offsets, data = offsets_and_data(pa.array(words, pa.string()))
    assert (offsets.tolist(), len(data)) == ([0] * (len(words) + 1), 0)
