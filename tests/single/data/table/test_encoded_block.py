"""Columns of Arrow as arrays of fixed width, with codes that refer to the block's own dictionaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from parallax_runner.data.table.encoded_block import EncodedBlock, EncodedList, encoded
from parallax_runner.data.table.read_columns import Lists
from parallax_runner.data.table.stored_table import MISSING_INTEGER, Cell, RawColumn
from tests.single.data.table.rows_of import columns_of

COLUMNS = columns_of(s="string", n="number", i="integer", t="string", l="string list")
WORDS = ["a", "é", "", "日本", None]


def random_block(seed: int, rows: int) -> tuple[EncodedBlock, dict[str, list[Any]]]:
    """Returns a block of `COLUMNS`, and what it contains."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 4, rows)
    given: dict[str, list[Any]] = {
        "s": [WORDS[one] for one in generator.integers(0, 5, rows)],
        "n": [None if one > 1 else float(np.float32(one)) for one in generator.normal(size=rows)],
        "i": [None if one == 0 else one for one in generator.integers(-3, 3, rows).tolist()],
        "t": [f"w{one}" for one in generator.integers(0, 1 + rows, rows)],
        "l": [[WORDS[one] for one in generator.integers(0, 5, length)] for length in lengths],
    }
    types = {"s": pa.string(), "n": pa.float32(), "i": pa.int64(), "t": pa.string()}
    arrays: list[Any] = [pa.array([None, *given[name]], type_)[1:] for name, type_ in types.items()]
    arrays.append(Lists(lengths, pa.array([word for words in given["l"] for word in words], pa.string())))
    return encoded(arrays, COLUMNS, rows), given


def decoded(block: EncodedBlock, name: str, codes: np.ndarray) -> list[str | None]:
    """Returns strings. An empty string is None, whether it has a code of its own or not."""
    words = block.dictionaries[name].to_pylist()
    return [None if code == 0 else words[code - 1] or None for code in codes.tolist()]


def filled(words: list[str | None]) -> list[str | None]:
    return [word or None for word in words]


def check(block: EncodedBlock, given: dict[str, list[Any]]) -> None:
    codes, lists = block.matrices[Cell.STRING], block.lists["l"]
    assert block.rows == len(given["s"])
    assert decoded(block, "s", codes[:, 0]) == filled(given["s"])
    assert decoded(block, "t", codes[:, 1]) == given["t"]
    expected = [np.nan if one is None else one for one in given["n"]]
    np.testing.assert_array_equal(block.matrices[Cell.NUMBER], np.array(expected, np.float32).reshape(-1, 1))
    integers = [MISSING_INTEGER if one is None else one for one in given["i"]]
    assert block.matrices[Cell.INTEGER].tolist() == [[one] for one in integers]
    assert lists.lengths.tolist() == [len(words) for words in given["l"]]
    assert decoded(block, "l", lists.values) == filled([word for words in given["l"] for word in words])


@pytest.mark.parametrize("rows", [0, 1, 7, 300])
def test_a_block_has_what_its_columns_have(rows: int) -> None:
    for seed in range(3):
        check(*random_block(seed, rows))


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_some_rows_of_a_block(share: float) -> None:
    block, given = random_block(4, 200)
    chosen = np.random.default_rng(5).random(200) < share
    kept = {name: [one for one, is_kept in zip(cells, chosen, strict=True) if is_kept] for name, cells in given.items()}
    check(block.where(chosen), kept)


@pytest.mark.parametrize(("rows", "dtype"), [(2**16 - 1, np.uint16), (2**16, np.int32)])
def test_codes_are_as_small_as_the_number_of_cells_allows(rows: int, dtype: type) -> None:
    """A column can have as many distinct strings as rows."""
    words = pa.array([str(number) for number in range(rows)])
    block = encoded([words], [RawColumn("s", Cell.STRING)], rows)
    codes = block.matrices[Cell.STRING]
    assert codes.dtype == dtype
    np.testing.assert_array_equal(codes[:, 0], np.arange(1, rows + 1))


def test_the_lists_of_some_rows() -> None:
    lists = EncodedList(np.array([2, 0, 1, 3]), np.arange(6))
    chosen = lists.where(np.array([False, True, True, True]))
    assert (chosen.lengths.tolist(), chosen.values.tolist()) == ([0, 1, 3], [2, 3, 4, 5])
