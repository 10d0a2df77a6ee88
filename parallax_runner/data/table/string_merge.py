"""Numbers the distinct strings of each column. While blocks are read, each block has dictionaries of its own. In the
end, they become one for each column.

The strings are numbered in the order in which they first appear, so the codes do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pyarrow as pa

from parallax_runner.data.table.array_file import ArrayFile, ScratchArray
from parallax_runner.data.table.arrow_buffers import offsets_and_data
from parallax_runner.data.table.local_codes import LocalCodes
from parallax_runner.data.table.merged_dictionary import merged


class StringMerge:
    """Collects the dictionaries of blocks in files of a folder, for the string columns `names`. All blocks must be
    added in their order."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = tuple(names)
        self._offsets = ArrayFile(folder / "offsets.npy", np.dtype(np.int32))
        self._data = ArrayFile(folder / "data.npy", np.dtype(np.uint8))
        # For each block and column: where its offsets and its data begin, and their numbers.
        self._places: list[np.ndarray] = []

    def add(self, dictionaries: Mapping[str, pa.Array]) -> None:
        """Adds the dictionaries of the next block."""
        places = np.empty((len(self._names), 4), dtype=np.int64)
        offsets_of, data_of = [], []
        offset_start, data_start = self._offsets.rows, self._data.rows
        for number, name in enumerate(self._names):
            offsets, data = offsets_and_data(dictionaries[name].cast(pa.string()))
            places[number] = offset_start, len(offsets), data_start, len(data)
            offset_start += len(offsets)
            data_start += len(data)
            offsets_of.append(offsets)
            data_of.append(data)
        if self._names:
            self._offsets.append(np.concatenate(offsets_of))
            self._data.append(np.concatenate(data_of))
        self._places.append(places)

    def finish(self, coded: Iterable[LocalCodes], paths: Mapping[str, tuple[Path, Path]], pool: Executor) -> None:
        """Writes the strings of each column to its `paths`, of the offsets and of the data, and the codes of all
        rows."""
        self._offsets.close()
        self._data.close()
        if not self._names or not self._places:
            for path in paths.values():
                _write_strings(*path, np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.uint8))
            return
        places = np.stack(self._places)
        offsets, data = ScratchArray(self._offsets.path), ScratchArray(self._data.path)

        def merge(number: int) -> Path:
            chunks = [_array_at(offsets.array, data.array, place) for place in places[:, number]]
            path = self._merge(chunks, number, paths[self._names[number]])
            offsets.give_back()
            data.give_back()
            return path

        codes = [ScratchArray(path) for path in pool.map(merge, range(len(self._names)))]
        tables = _CodesOfBlocks(dict(zip(self._names, codes, strict=True)), places[:, :, 1])
        for local in coded:
            local.finish(tables, pool)

    def _merge(self, chunks: list[pa.Array], number: int, paths: tuple[Path, Path]) -> Path:
        words = merged(chunks)
        _write_strings(*paths, words.offsets, words.data)
        path = self._folder / f"codes{number}.npy"
        with ArrayFile(path, np.dtype(np.int32)) as file:
            for codes in words.codes:
                file.append(codes)
        return path


class _CodesOfBlocks:
    """The final codes of the blocks' own codes. `counts` is the number of codes of each block and column."""

    def __init__(self, codes: Mapping[str, ScratchArray], counts: np.ndarray) -> None:
        self._codes = codes
        starts = np.cumsum(counts, axis=0) - counts
        self._starts = dict(zip(codes, starts.T, strict=True))
        self._counts = dict(zip(codes, counts.T, strict=True))

    def of(self, name: str, block: int) -> np.ndarray:
        """See Tables."""
        start, count = self._starts[name][block], self._counts[name][block]
        return self._codes[name].array[start : start + count]

    def give_back(self) -> None:
        """See Tables."""
        for codes in self._codes.values():
            codes.give_back()


def _array_at(offsets: np.ndarray, data: np.ndarray, place: np.ndarray) -> pa.Array:
    """Returns the strings at a place, without a copy."""
    offset_start, offset_count, data_start, data_count = (int(value) for value in place)
    block_offsets = offsets[offset_start : offset_start + offset_count]
    block_data = data[data_start : data_start + data_count]
    buffers = [None, pa.py_buffer(block_offsets), pa.py_buffer(block_data)]
    return pa.BinaryArray.from_buffers(pa.binary(), offset_count - 1, buffers)


def _write_strings(offsets_path: Path, data_path: Path, offsets: np.ndarray, data: np.ndarray) -> None:
    """Writes the strings behind an empty one."""
    with ArrayFile(offsets_path, np.dtype(np.int64)) as file:
        file.append(np.zeros(1, dtype=np.int64))
        file.append(offsets)
    with ArrayFile(data_path, np.dtype(np.uint8)) as file:
        file.append(data)
