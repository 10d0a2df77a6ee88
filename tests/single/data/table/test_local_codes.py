"""Codes of the blocks' own dictionaries become final codes, span by span, in the order of the rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from parallax_runner.data.table.array_file import ArrayFile, mapped
from parallax_runner.data.table.local_codes import LocalCodes


class RandomTables:
    """A table of final codes for each column and block."""

    def __init__(self, names: tuple[str, ...], blocks: int) -> None:
        generator = np.random.default_rng(9)
        self.given_back = 0
        self._codes = {
            (name, block): generator.integers(0, 2**31 - 1, 1000, np.int32) for name in names for block in range(blocks)
        }

    def of(self, name: str, block: int) -> np.ndarray:
        return self._codes[name, block]

    def give_back(self) -> None:
        self.given_back += 1


@pytest.mark.parametrize("is_list", [False, True])
def test_final_codes_are_in_the_order_of_the_rows(is_list: bool, tmp_path: Path) -> None:
    names = ("a",) if is_list else ("a", "b", "c")
    generator = np.random.default_rng(1)
    final = ArrayFile(tmp_path / "final.npy", np.dtype(np.int32), () if is_list else (3,))
    codes = LocalCodes(tmp_path / "local", names, final)
    tables = RandomTables(names, 10)
    expected = []
    for number in range(20):  # a block can have several spans, also with other dtypes
        block = number // 2
        dtype = np.dtype(np.int32 if number % 3 else np.uint16)
        local = generator.integers(0, 1000, (int(generator.integers(0, 50)), len(names))).astype(dtype)
        codes.append(np.asfortranarray(local), block)
        columns = [tables.of(name, block)[local[:, place]] for place, name in enumerate(names)]
        expected.append(np.stack(columns, axis=1))
    with ThreadPoolExecutor(3) as pool:
        codes.finish(tables, pool)
    final.close()
    rows = np.concatenate(expected)
    np.testing.assert_array_equal(mapped(final.path), rows[:, 0] if is_list else rows)
    assert codes.final_bytes == rows.nbytes
    assert tables.given_back == 3  # of 8, 8 and 4 spans: the memory does not grow with the table


def test_a_part_without_rows(tmp_path: Path) -> None:
    final = ArrayFile(tmp_path / "final.npy", np.dtype(np.int32), (2,))
    codes = LocalCodes(tmp_path / "local", ("a", "b"), final)
    with ThreadPoolExecutor(1) as pool:
        codes.finish(RandomTables(("a", "b"), 0), pool)
    final.close()
    assert (final.rows, codes.final_bytes) == (0, 0)


def test_a_column_without_strings(tmp_path: Path) -> None:
    """A table of numbers only has a matrix of codes without columns."""
    final = ArrayFile(tmp_path / "final.npy", np.dtype(np.int32), (0,))
    codes = LocalCodes(tmp_path / "local", (), final)
    codes.append(np.empty((5, 0), np.uint16), 0)
    with ThreadPoolExecutor(1) as pool:
        codes.finish(RandomTables((), 1), pool)
    final.close()
    assert mapped(final.path).shape == (5, 0)
