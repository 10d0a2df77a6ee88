"""`sampled`: ids of another column that are drawn for each example, such as items that a user has not chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from parallax_runner.data.draws import columns, uniform
from parallax_runner.data.table.columns.column import Column, Role, TableFeature
from parallax_runner.data.table.columns.settings import count, setting, text
from parallax_runner.data.table.stored_table import RawColumn


@dataclass(frozen=True)
class Sampled(Column):
    """Its feature is int64 [count]: ids of the column `from`, each with the same probability. The draws depend only on
    the seed and the example's position in the stream, so they are the same with any number of workers."""

    kind: ClassVar[str] = "sampled"
    role: ClassVar[Role] = Role.DRAWN

    from_: str = setting("", text)
    count: int = setting(1, count)

    def check(self) -> str | None:
        return None if self.from_ else "expected the column whose ids are drawn, as in {from: item, count: 4}"

    @property
    def raw(self) -> RawColumn | None:
        return None

    def described_like(self, drawn_from: TableFeature) -> TableFeature:
        """Returns what a model is told about the feature. `drawn_from` is the feature of the column `from`."""
        return TableFeature(self.kind, (self.count,), "int64", drawn_from.sizes)

    def drawn(self, positions: np.ndarray, key: np.uint64, first: int, size: int) -> np.ndarray:
        """Returns ids in [first, size), int64 [positions, count]."""
        draws = uniform(key, columns(positions, self.count))
        return first + (draws * (size - first)).astype(np.int64)
