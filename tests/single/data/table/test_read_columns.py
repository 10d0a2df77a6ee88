"""Arrays of any Arrow type as the three types of cells: what is missing, what is rounded, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from parallax_runner.data.table.read_columns import (
    MISSING_TEXTS,
    BadBlock,
    Lists,
    ReadColumn,
    as_read,
    check_finite,
)
from parallax_runner.data.table.stored_table import Cell, RawColumn

NUMBER, INTEGER, STRING = (ReadColumn.of(RawColumn("c", cell)) for cell in Cell)


def values(array: pa.Array, column: ReadColumn) -> list[Any]:
    found = as_read(array, column)
    assert isinstance(found, pa.Array)
    assert found.type == column.type
    return found.to_pylist()


@pytest.mark.parametrize("text_type", [pa.string(), pa.large_string(), pa.binary(), pa.string_view()])
def test_texts_become_numbers(text_type: pa.DataType) -> None:
    texts = ["1", " -2\t", None, *MISSING_TEXTS]
    expected = [1, -2, None, *[None] * len(MISSING_TEXTS)]
    array = pa.array(texts).cast(text_type)
    assert values(array, INTEGER) == expected
    assert values(array, NUMBER) == expected


@pytest.mark.parametrize("number_type", [pa.int8(), pa.uint64(), pa.float64(), pa.float16(), pa.bool_()])
def test_numbers_of_any_type(number_type: pa.DataType) -> None:
    array = pa.array(np.array([0, 1, 1])).cast(pa.int8()).cast(number_type)
    assert values(array, INTEGER) == [0, 1, 1]
    assert values(array, NUMBER) == [0.0, 1.0, 1.0]


def test_a_number_is_rounded_and_an_integer_is_not() -> None:
    assert values(pa.array([2**24 + 1]), NUMBER) == [2.0**24]
    assert values(pa.array([2**62 + 1]), INTEGER) == [2**62 + 1]
    assert values(pa.array([float("nan"), 3.0]), INTEGER) == [None, 3]
    for bad in ([1.5], [float("inf")], [1e300], ["1.5"], ["x"], [str(2**63)]):
        with pytest.raises(pa.ArrowInvalid):
            as_read(pa.array(bad), INTEGER)


def test_strings_are_utf8() -> None:
    assert values(pa.array(["é", "", None]).cast(pa.large_binary()), STRING) == ["é", "", None]
    assert values(pa.array([1, None]), STRING) == ["1", None]
    with pytest.raises(pa.ArrowInvalid):
        as_read(pa.array([b"\xff"]), STRING)
    not_checked = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    with pytest.raises(pa.ArrowInvalid):
        as_read(not_checked, STRING)


def test_dictionaries_are_decoded() -> None:
    array = pa.array(["b", None, "a", "b"]).dictionary_encode()
    assert values(array, STRING) == ["b", None, "a", "b"]
    assert values(pa.array(["2", "NA"]).dictionary_encode(), INTEGER) == [2, None]


def read_lists(array: pa.Array, cell: Cell, separator: str | None = None) -> list[Any]:
    column = ReadColumn.of(RawColumn("c", cell, is_list=True, separator=separator))
    found = as_read(array, column)
    assert isinstance(found, Lists)
    assert len(found.values) == found.lengths.sum()
    stops = np.cumsum(found.lengths)
    every = found.values.to_pylist()
    return [every[stop - length : stop] for stop, length in zip(stops, found.lengths, strict=True)]


def test_lists() -> None:
    given = [[1, 2], [], None, [None, 3]]
    expected = [[1, 2], [], [], [None, 3]]
    for list_type in (pa.list_(pa.int32()), pa.large_list(pa.int64())):
        assert read_lists(pa.array(given, list_type), Cell.INTEGER) == expected
        assert read_lists(pa.array([[9], *given], list_type)[1:], Cell.INTEGER) == expected
    assert read_lists(pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), Cell.NUMBER) == [[1.0, 2.0], [3.0, 4.0]]
    assert read_lists(pa.nulls(2), Cell.STRING) == [[], []]


def test_lists_in_a_text() -> None:
    texts = pa.array(["a|é", "", None, "b||", "|"])
    assert read_lists(texts, Cell.STRING, "|") == [["a", "é"], [], [], ["b", "", ""], ["", ""]]
    assert read_lists(pa.array(["1, 2", "NA"]), Cell.INTEGER, ",") == [[1, 2], [None]]
    with pytest.raises(pa.ArrowNotImplementedError, match="has no lists"):
        read_lists(texts, Cell.STRING)


def test_infinite_numbers_are_found_in_cells_and_lists() -> None:
    finite = pa.array([1.0, None, float("nan")], pa.float32())
    infinite = pa.array([float("-inf")], pa.float32())
    many = ReadColumn.of(RawColumn("many", Cell.NUMBER, is_list=True))
    check_finite([finite, Lists(np.array([3]), finite)], [NUMBER, many])
    with pytest.raises(BadBlock, match="many"):
        check_finite([finite, Lists(np.array([1]), infinite)], [NUMBER, many])
    with pytest.raises(BadBlock, match="c"):
        check_finite([infinite], [NUMBER])


def test_what_is_expected() -> None:
    assert NUMBER.expected == "a finite number"
    assert ReadColumn.of(RawColumn("c", Cell.STRING, is_list=True)).expected == "a list, each value a string in UTF-8"
