"""Rows with cells that their column does not accept: they end the run, or are skipped up to a limit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from parallax_runner.data.table.bad_rows import FAIL, BadRows
from parallax_runner.data.table.cells import Cells
from parallax_runner.data.table.columns.column import Column, Faults
from parallax_runner.data.table.origins import row_origin
from parallax_runner.data.table.stored_table import StoredTable
from parallax_runner.errors import DataError, Setting

log = logging.getLogger(__name__)
NAMED_ROWS = 5


class BadCells:
    """Checks the cells of a table chunk by chunk, and collects the rows to skip."""

    def __init__(self, table: StoredTable, limit: BadRows) -> None:
        self._table, self._limit = table, limit
        self._skipped: dict[str, list[np.ndarray]] = {}
        self._count = table.skipped_rows

    def checked(
        self, part: str, start: int, columns: Sequence[Column], cells: Mapping[str, Cells]
    ) -> np.ndarray | None:
        """Returns whether each row of a chunk is good, bool [rows], or None if all are. `start` is its first row.

        Raises DataError for a bad row, or for too many.
        """
        bad: set[int] = set()
        for column in columns:
            faults = column.faults(cells[column.name], self._table.strings.get(column.name))
            if faults is not None:
                self._take(part, start, column, faults, bad)
        if not bad:
            return None
        rows = np.array(sorted(bad))
        self._skipped.setdefault(part, []).append(start + rows)
        first = cells[columns[0].name]
        is_good = np.ones(len(first.values if first.lengths is None else first.lengths), dtype=bool)
        is_good[rows] = False
        return is_good

    def skipped(self) -> dict[str, np.ndarray]:
        """Returns the rows to skip by part, int64, in ascending order."""
        return {part: np.concatenate(rows) for part, rows in self._skipped.items()}

    def _take(self, part: str, start: int, column: Column, faults: Faults, bad: set[int]) -> None:
        """Adds the rows of faults to `bad`."""
        for place, row in enumerate(faults.rows.tolist()):
            if row in bad:
                continue
            bad.add(row)
            self._count += 1
            told = self._told(part, start + row, faults.reason(place)) if self._is_named() else ""
            if self._limit.on_bad_row == FAIL:
                raise DataError(told).about(
                    Setting(_key(column), None),
                    remedy="Mend this row, or leave bad rows out with data.on_bad_row=skip.",
                )
            if self._count > self._limit.at_most:
                raise self._too_many(column, told)
            if told:
                log.warning("skipped a bad row: %s: %s", _key(column), told)

    def _is_named(self) -> bool:
        """Returns whether a message names the last bad row."""
        is_fatal = self._limit.on_bad_row == FAIL or self._count > self._limit.at_most
        return is_fatal or self._count <= NAMED_ROWS

    def _too_many(self, column: Column, told: str) -> DataError:
        return DataError(f"more than {self._limit.at_most} bad rows; the last one is: {told}").about(
            Setting(_key(column), None),
            Setting.of("data.max_bad_rows", self._limit.at_most),
            remedy="Mend the rows, or raise the limit.",
        )

    def _told(self, part: str, row: int, reason: str) -> str:
        if self._table.folder is None:
            return f"row {row + 1} of the rows for {part} has {reason}."
        file, line = row_origin(self._table.folder, part, row)
        return f"{file}: line {line} has {reason}."


def _key(column: Column) -> str:
    return f"data.columns.{column.name}.{column.kind}"
