"""Brings the rows of a variable's shards together in blocks of consecutive rows.

Shards on servers have every n-th row (docs/design/0031-rows-modulo-shards.md), but TensorFlow can only describe
consecutive rows of a variable in a file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from parallax_runner.checkpoints.part_files import SLICED_DTYPES
from parallax_runner.checkpoints.row_blocks import BLOCK_BYTES, aligned_bytes
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.rewrite.distributed_graph import StoredRows

# The positions in a list of the shards with the same columns of a variable.
Shards = list[int]


class ShardBlocks:
    """The blocks of those variables in `slices` that are larger than `block_bytes` and have shards of non-consecutive
    rows. `block_rows` has the number of rows in a block, by the names of these variables."""

    def __init__(self, slices: Sequence[Slice], block_bytes: int = BLOCK_BYTES) -> None:
        self._slices = tuple(slices)
        names = {part.name for part in slices if part.step > 1 and _is_large(part, block_bytes)}
        self._shards: dict[tuple[str, tuple[int, ...]], Shards] = defaultdict(list)
        self.block_rows: dict[str, int] = {}
        for number, part in enumerate(slices):
            if part.name in names:
                self._shards[part.name, part.offset[1:]].append(number)
                self.block_rows[part.name] = max(1, block_bytes // part.row_bytes)

    def slices(self) -> Iterator[tuple[Slice, Shards]]:
        """Yields the slice of each block, and the shards that have its rows."""
        for (name, _), shards in self._shards.items():
            rows = [self._rows(number) for number in shards]
            begin = min(one.first for one in rows)
            end = 1 + max(one.row_at(one.count - 1) for one in rows)
            part = self._slices[shards[0]]
            for first in range(begin, end, self.block_rows[name]):
                count = min(self.block_rows[name], end - first)
                yield _block(part, first, count), shards

    def values(self, block: Slice, shards: Shards, values: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the rows of a block, given the values of all slices."""
        first, count = block.offset[0], block.shape[0]
        whole = aligned_bytes(count * block.row_bytes).view(block.dtype.as_numpy_dtype).reshape(block.shape)
        for number in shards:
            rows = self._rows(number)
            places = rows.places(first, first + count)
            if places:
                begin = rows.row_at(places.start) - first
                whole[begin : begin + len(places) * rows.step : rows.step] = values[number][places.start : places.stop]
        return whole

    def _rows(self, number: int) -> StoredRows:
        part = self._slices[number]
        return StoredRows(part.offset[0], part.shape[0], part.step)


def _is_large(part: Slice, block_bytes: int) -> bool:
    size_bytes = int(np.prod(part.full_shape)) * part.dtype.size
    return part.dtype in SLICED_DTYPES and size_bytes > block_bytes


def _block(part: Slice, first: int, count: int) -> Slice:
    return Slice(
        name=part.name,
        dtype=part.dtype,
        full_shape=part.full_shape,
        offset=(first, *part.offset[1:]),
        shape=(count, *part.shape[1:]),
    )
