"""The result of a short trial: the rows that steps touch, and the time of a step on one device."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_runner.analysis.variable_info import (
    GradientKind,
    RowsWritten,
    VariableInfo,
    WholeInitialValue,
    WholeTable,
)
from parallax_runner.files.regular import read_regular
from parallax_runner.files.whole import write_whole

FORMAT = 4
FILE_NAME = "measured.json"
MOST_RANKS = 8  # maximum number of measured ranks; touched rows of larger clusters are extrapolated
# The number of batches whose ids a trial reads, over all ranks and steps. With more batches, more rare rows are found.
# No rank of a trial reads more batches than this.
MOST_STEPS = 40
MOST_HOT_ROWS = 4096  # maximum number of rows per variable that are counted individually


@dataclass(frozen=True)
class RowStatistics:
    """How often each row of a sparse variable was touched in `samples` batches. Each rank contributes one batch per
    step.

    Three fields are means over steps: `ids` is the number of ids on a rank, including duplicates, `distinct` is the
    number of distinct ids on a rank, and `merged` is the number of distinct ids on all measured ranks. `incidence`
    contains pairs (c, rows) with c >= 1, where `rows` is the number of rows that exactly c samples touched. `hot`
    contains the rows touched most often, in descending order, as pairs of a row and the number of samples that touched
    it.
    """

    name: str
    rows: int
    ids: float
    distinct: float
    merged: float
    samples: int
    incidence: tuple[tuple[int, int], ...] = ()
    hot: tuple[tuple[int, int], ...] = ()

    @property
    def alpha(self) -> float:
        """The fraction of rows that a rank touches in a step."""
        return self.distinct / self.rows

    def merged_over(self, ranks: int) -> float:
        """Returns the expected number of distinct rows that a step with `ranks` ranks touches.

        If there are at least as many samples as ranks, this is exactly the mean over all choices of `ranks` samples
        (rarefaction). For more ranks, the number is extrapolated with Chao's lower bound for the number of unseen rows
        (Colwell and others 2012, equations 4 and 9). The result is never larger than the variable's number of rows or
        than the number of rows that the ranks can touch.
        """
        if ranks <= 0:
            return 0.0
        if not self.incidence or not self.samples:
            return min(ranks * self.distinct, float(self.rows))
        found = self._rarefied(ranks) if ranks <= self.samples else self._extrapolated(ranks)
        return min(found, float(self.rows), ranks * self.distinct)

    def apart_from(self, ranks: int) -> float:
        """Returns the expected number of distinct rows that a rank touches in a step and that none of `ranks` ranks
        touched in the previous step.

        One more batch would add this number of rows to the rows that a whole step touches, so the result is the
        difference between two values of `merged_over`. Batches are assumed to be drawn independently of each other.
        """
        return min(self.distinct, max(0.0, self.merged_over(ranks + 1) - self.merged_over(ranks)))

    def _rarefied(self, ranks: int) -> float:
        total = math.lgamma(self.samples + 1) - math.lgamma(self.samples - ranks + 1)
        found = 0.0
        for count, rows in self.incidence:
            others = self.samples - count
            missed = 0.0
            if others >= ranks:
                missed = math.exp(math.lgamma(others + 1) - math.lgamma(others - ranks + 1) - total)
            found += rows * (1 - missed)
        return found

    def _extrapolated(self, ranks: int) -> float:
        counts = dict(self.incidence)
        observed, once, twice = float(sum(counts.values())), counts.get(1, 0), counts.get(2, 0)
        if not once:
            return observed
        unseen = (self.samples - 1) / self.samples * once * (once - 1) / (2 * (twice + 1))
        unseen = min(unseen, self.rows - observed)
        if unseen <= 0:
            return observed
        chance = once / (self.samples * unseen + once)
        return observed + unseen * (1 - (1 - chance) ** (ranks - self.samples))


@dataclass(frozen=True)
class Measured:
    """The result of a trial for one graph and its data.

    `ranks` and `steps` are the numbers of measured ranks and steps. `step_secs` is the median time of a step on one
    device, including updates. `batch_size` and `words_per_example` (None if the data contains no words) apply to one
    rank. `made` is the date of the trial.
    """

    fingerprint: str
    ranks: int
    steps: int
    step_secs: float
    batch_size: int
    words_per_example: float | None
    variables: tuple[VariableInfo, ...]
    rows: tuple[RowStatistics, ...]
    made: str
    format: int = FORMAT

    def of(self, variable: str) -> RowStatistics | None:
        """Returns the statistics of a sparse variable, or None if there are none."""
        return next((rows for rows in self.rows if rows.name == variable), None)


def save(measured: Measured, path: Path) -> None:
    """Writes `measured` as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(dataclasses.asdict(measured)) + "\n")


def load(path: Path) -> Measured:
    """Reads the file that `save` wrote. Raises OSError, ValueError, KeyError or TypeError for any other file."""
    fields = json.loads(read_regular(path))
    if not isinstance(fields, dict) or "format" not in fields:
        raise ValueError(f"{path}: expected a measurement")
    if fields["format"] != FORMAT:
        raise ValueError(f"{path}: format {fields['format']}, expected {FORMAT}")
    variables = tuple(_variable(entry) for entry in fields.pop("variables"))
    found = Measured(variables=variables, rows=tuple(_rows(entry) for entry in fields.pop("rows")), **fields)
    if found.step_secs <= 0:
        raise ValueError(f"{path}: step_secs is {found.step_secs}, expected a number above 0")
    return found


def _variable(entry: dict[str, Any]) -> VariableInfo:
    more = {
        "shape": tuple(entry["shape"]),
        "slots": tuple(entry["slots"]),
        "gradient": GradientKind(entry["gradient"]),
        "rows_written": RowsWritten(entry["rows_written"]),
        "whole_tables": tuple(WholeTable(**table) for table in entry["whole_tables"]),
        "whole_initial_values": tuple(WholeInitialValue(**value) for value in entry["whole_initial_values"]),
    }
    return VariableInfo(**entry | more)


def _rows(entry: dict[str, Any]) -> RowStatistics:
    lists: dict[str, Any] = {name: tuple(map(tuple, entry[name])) for name in ("incidence", "hot")}
    return RowStatistics(**entry | lists)
