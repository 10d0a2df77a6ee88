"""How many rows of a variable a step touches: measured, or a bound from the graph's shapes."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.planning.cost.measured import Measured


@dataclass(frozen=True)
class Touched:
    """Of one step: rows that a rank touches, and distinct rows over all ranks; `is_bound` if there are at most so
    many, otherwise they are measured means."""

    distinct: float
    merged: float
    is_bound: bool

    def share_of(self, variable: VariableInfo) -> float:
        """The fraction of the variable's rows that a step touches, merged over ranks, at most 1; of no rows none."""
        rows = variable.shape[0] if variable.shape else 1
        return min(1.0, self.merged / rows) if rows else 0.0


def touched_rows(variable: VariableInfo, workers: int, measured: Measured | None) -> Touched | None:
    """All rows of a dense variable; None where only running can tell and nobody has measured."""
    rows = float(variable.shape[0]) if variable.shape else 1.0
    if variable.gradient is not GradientKind.SPARSE:
        return Touched(rows, rows, is_bound=False)
    found = None if measured is None else measured.of(variable.name)
    if found is not None and measured is not None:
        merged = found.merged if workers == measured.ranks else found.merged_over(workers)
        return Touched(found.distinct, max(found.distinct, merged), is_bound=False)
    if variable.gradient_rows is None:
        return None
    ids = float(variable.gradient_rows)
    return Touched(ids, max(ids, min(rows, workers * ids)), is_bound=True)
