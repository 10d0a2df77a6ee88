"""Some consecutive records of a text file, whose rows are numbered by their lines."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from typing import Self

import numpy as np

from parallax_runner.data.table.raw_block import RawBlock
from parallax_runner.data.table.text_stream import TextPiece


@dataclass(frozen=True, kw_only=True)
class TextBlock(RawBlock):
    """The records of a piece of a file. Each format finds its own records."""

    piece: TextPiece

    @abstractmethod
    def _records(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns where each record starts in the piece, and on which of its lines, both int64 [records]."""

    @property
    def place(self) -> str:
        """See RawBlock."""
        return "line"

    def lines(self) -> np.ndarray:
        """See RawBlock."""
        _, lines = self._records()
        return lines + self.piece.first_line

    def regular_start(self, rows: int) -> int | None:
        """See RawBlock."""
        return self.piece.first_line if rows == self.piece.line_count else None

    def divided(self) -> tuple[Self, Self] | None:
        """See RawBlock."""
        starts, lines = self._records()
        if len(starts) < 2:
            return None
        middle = len(starts) // 2
        place = int(starts[middle]), int(lines[middle])
        first, second = self.piece.up_to_record(*place), self.piece.from_record(*place)
        return dataclasses.replace(self, piece=first), dataclasses.replace(self, piece=second)
