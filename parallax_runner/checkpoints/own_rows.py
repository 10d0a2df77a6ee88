"""Reads a rank's own rows of the variables that are spread over the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.part_files import SLICED_DTYPES
from parallax_runner.checkpoints.row_blocks import Spread
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.rewrite.distributed_graph import Piece


class OwnRows:
    """The ops that read ranges of own rows. `slices` are the whole pieces, of which this rank has every `ranks`-th row.

    One run reads from all variables, because TensorFlow prepares the graph again for each new set of fetches. Create
    this object before the session.
    """

    def __init__(self, slices: Sequence[Slice], pieces: Sequence[Piece]) -> None:
        self.slices = tuple(slices)
        self.variables = [
            Spread(part.shape[0], part.row_bytes, is_divisible=part.dtype in SLICED_DTYPES) for part in slices
        ]
        (self.ranks,) = {piece.ranks or 1 for piece in pieces}
        self._ranges = tf.placeholder(tf.int64, [len(pieces), 2], name="own_ranges")
        self._values = [
            piece.read_at(tf.range(self._ranges[number, 0], self._ranges[number, 1]))
            for number, piece in enumerate(pieces)
        ]

    @classmethod
    def of(cls, parts: Sequence[tuple[Slice, Piece]]) -> OwnRows | None:
        """Returns the ops for those pieces that are spread over the ranks, or None if no piece is."""
        spread = [(part, piece) for part, piece in parts if piece.ranks is not None]
        return cls([part for part, _ in spread], [piece for _, piece in spread]) if spread else None

    @property
    def sizes_bytes(self) -> list[int]:
        """For each variable, the most bytes of it that one rank owns."""
        return [-(-variable.rows // self.ranks) * variable.row_bytes for variable in self.variables]

    def block_rows(self, block_bytes: int) -> dict[str, int]:
        """Returns the numbers of rows in a block, by the names of the variables that have several blocks."""
        found: dict[str, int] = {}
        for part, variable in zip(self.slices, self.variables, strict=True):
            rows = variable.block_rows(block_bytes)
            if rows < variable.rows:
                found[part.name] = min(rows, found.get(part.name, rows))
        return found

    def read(self, session: tf.Session, ranges: Mapping[int, range]) -> dict[int, np.ndarray]:
        """Returns a copy of the rows at ranges of positions among the own rows, as bytes (uint8 [rows, row bytes]). The
        keys of `ranges` are the positions of the variables in `slices`."""
        fed = np.zeros([len(self.slices), 2], np.int64)
        for number, places in ranges.items():
            fed[number] = places.start, places.stop
        values = session.run(self._values, {self._ranges: fed})
        return {
            number: values[number].reshape(-1).view(np.uint8).reshape(len(places), self.variables[number].row_bytes)
            for number, places in ranges.items()
        }

    def values_of(self, number: int, rows: np.ndarray) -> np.ndarray:
        """Returns rows of the variable `number`, given as bytes, with the variable's dtype and shape."""
        part = self.slices[number]
        return rows.reshape(-1).view(part.dtype.as_numpy_dtype).reshape(len(rows), *part.shape[1:])
