"""Blocks of rows become the files of a part, whatever their number and size."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from parallax_runner.data.table.array_file import mapped
from parallax_runner.data.table.encoded_block import DTYPE, EncodedBlock, encoded
from parallax_runner.data.table.origins import row_origin, write_files
from parallax_runner.data.table.part_writer import PartWriter, list_paths, matrix_path
from parallax_runner.data.table.read_columns import Lists
from parallax_runner.data.table.stored_table import Cell
from parallax_runner.data.table.string_merge import StringMerge
from tests.single.data.table.rows_of import columns_of

COLUMNS = columns_of(l="integer list", n="number", s="string", m="string list", i="integer")


def block_of(rows: list[tuple[Any, ...]]) -> EncodedBlock:
    ints, numbers, words, lists, integers = zip(*rows, strict=True) if rows else ([], [], [], [], [])

    def joined(cells: Any, type_: pa.DataType) -> Lists:
        values = [value for cell in cells for value in cell]
        return Lists(np.array([len(cell) for cell in cells], np.int64), pa.array(values, type_))

    arrays = [
        joined(ints, pa.int64()),
        pa.array(numbers, pa.float32()),
        pa.array(words, pa.string()),
        joined(lists, pa.string()),
        pa.array(integers, pa.int64()),
    ]
    return encoded(arrays, COLUMNS, len(rows))


def random_rows(generator: np.random.Generator, count: int) -> list[tuple[Any, ...]]:
    def words() -> list[str]:
        return [f"é{one}" for one in generator.integers(0, 9, generator.integers(0, 4))]

    return [
        (generator.integers(-9, 9, generator.integers(0, 3)).tolist(), float(row), f"w{row % 5}", words(), row - 3)
        for row in range(count)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_files_have_the_rows_of_all_blocks(seed: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(seed)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    writer, merge = PartWriter(tmp_path, scratch, "test", COLUMNS), StringMerge(scratch, ["s", "m"])
    rows = []
    for number in range(12):
        some = random_rows(generator, int(generator.choice([0, 1, 20])))
        block = block_of(some)
        lines = None if number % 2 else 2 * np.arange(len(some)) + 100 * number
        writer.append(block, block=number, file=0, first_line=100 * number, lines=lines)
        merge.add(block.dictionaries)
        rows += [(*row, 100 * number + place * (1 if number % 2 else 2)) for place, row in enumerate(some)]
    paths = {name: (tmp_path / f"{name}.offsets", tmp_path / f"{name}.data") for name in ("s", "m")}
    told_bytes = writer.written_bytes
    with ThreadPoolExecutor(2) as pool:
        merge.finish(writer.coded, paths, pool)
    writer.close()
    assert writer.rows == len(rows)
    assert sum(array.nbytes for array in _arrays(tmp_path)) == told_bytes
    write_files(tmp_path, ["a.csv"])
    assert [row_origin(tmp_path, "test", row) for row in range(len(rows))] == [("a.csv", row[-1]) for row in rows]
    _check(tmp_path, rows, {name: _strings(*both) for name, both in paths.items()})


def _arrays(folder: Path) -> list[np.ndarray]:
    lists = [path for number in (0, 3) for path in list_paths(folder, "test", number)]
    return [mapped(path) for path in [*(matrix_path(folder, "test", cell) for cell in Cell), *lists]]


def _strings(offsets_path: Path, data_path: Path) -> list[str]:
    offsets, data = mapped(offsets_path).tolist(), mapped(data_path).tobytes()
    return [data[start:stop].decode() for start, stop in itertools.pairwise(offsets)]


def _check(folder: Path, rows: list[tuple[Any, ...]], words: dict[str, list[str]]) -> None:
    numbers, integers, codes, int_offsets, ints, word_offsets, list_codes = _arrays(folder)
    assert numbers.tolist() == [[row[1]] for row in rows]
    assert integers.tolist() == [[row[4]] for row in rows]
    assert [words["s"][code] for (code,) in codes.tolist()] == [row[2] for row in rows]
    assert _cut(ints.tolist(), int_offsets) == [row[0] for row in rows]
    assert _cut([words["m"][code] for code in list_codes.tolist()], word_offsets) == [row[3] for row in rows]


def _cut(values: list[Any], offsets: np.ndarray) -> list[list[Any]]:
    return [values[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]


def test_a_part_without_rows_has_all_files(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, tmp_path, "validation", COLUMNS)
    writer.append(block_of([]), block=0, file=0, first_line=1, lines=None)
    writer.close()
    for cell in Cell:
        matrix = mapped(matrix_path(tmp_path, "validation", cell))
        assert (matrix.shape, matrix.dtype) == ((0, 1), DTYPE[cell])
    offsets, values = (mapped(path) for path in list_paths(tmp_path, "validation", 0))
    assert (offsets.tolist(), values.tolist()) == ([0], [])
