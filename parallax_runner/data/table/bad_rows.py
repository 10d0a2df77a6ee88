"""What happens with rows that cannot be read: they end the run, or are skipped up to a limit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from parallax_runner.data.table.good_rows import BadRow
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.errors import ConfigError, DataError, Setting

log = logging.getLogger(__name__)

FAIL, SKIP = "fail", "skip"
_NAMED_ROWS = 5
_SHOWN_CHARS = 80


@dataclass(frozen=True)
class BadRows:
    """What to do with bad rows: "fail", or "skip" at most this many."""

    on_bad_row: str = FAIL
    at_most: int = 1000

    def __post_init__(self) -> None:
        """Raises ConfigError if a value is out of range."""
        if self.on_bad_row not in (FAIL, SKIP):
            raise ConfigError(f"expected {FAIL} or {SKIP}.").about(Setting.of("data.on_bad_row", self.on_bad_row))
        if self.at_most < 0:
            raise ConfigError("expected 0 or more.").about(Setting.of("data.max_bad_rows", self.at_most))

    @property
    def most(self) -> int:
        """The number of bad rows that ends the conversion."""
        return 1 if self.on_bad_row == FAIL else self.at_most + 1


class BadRowCounter:
    """Counts the bad rows of a conversion, and names the first ones in the log."""

    def __init__(self, limit: BadRows) -> None:
        self.skipped = 0
        self._limit = limit

    def count(self, rows: Sequence[BadRow], file: SourceFile) -> None:
        """Counts bad rows of a file. Raises DataError if there are too many."""
        for row in rows:
            if self._limit.on_bad_row == FAIL:
                raise DataError(_described(row, file)).about(
                    remedy="Mend this row, or leave bad rows out with data.on_bad_row=skip."
                )
            self.skipped += 1
            if self.skipped <= _NAMED_ROWS:
                log.warning("skipped a bad row: %s", _described(row, file))
            if self.skipped > self._limit.at_most:
                raise DataError(
                    f"more than {self._limit.at_most} bad rows; the last one is {_described(row, file)}"
                ).about(
                    Setting.of("data.max_bad_rows", self._limit.at_most), remedy="Mend the rows, or raise the limit."
                )

    def tell(self) -> None:
        """Logs the number of skipped rows, if any."""
        if self.skipped:
            log.warning("skipped %d bad rows", self.skipped)


def _described(row: BadRow, file: SourceFile) -> str:
    place = f"{file.path}: {row.place} {row.number}"
    fault = row.fault
    if fault.column is None:
        return f"{place}: expected {fault.expected}."
    return f"{place}, column {fault.column}: expected {fault.expected}, got {_shown(fault.value)}."


def _shown(value: str | None) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
