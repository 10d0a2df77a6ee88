"""The number of a variable's rows that a step touches: a measured number, or an upper bound from the graph's shapes."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.planning.cost.measured import Measured


@dataclass(frozen=True)
class Touched:
    """The number of rows that a step touches.

    `distinct` is the number for one rank, and `merged` the number for all ranks together. `apart` is the number of rows
    that a rank touches and that no rank touched in the previous step. All three are measured means, unless `is_bound`
    is set. In that case, the first two are upper bounds, and `apart` is a lower bound.
    """

    distinct: float
    merged: float
    is_bound: bool
    apart: float = 0.0

    @property
    def apart_share(self) -> float:
        """The fraction of a rank's touched rows that no rank touched in the previous step."""
        return self.apart / self.distinct if self.distinct else 0.0

    def share_of(self, variable: VariableInfo) -> float:
        """Returns the fraction of the variable's rows that all ranks together touch in a step. The fraction is at most
        1."""
        rows = variable.shape[0] if variable.shape else 1
        return min(1.0, self.merged / rows) if rows else 0.0


def touched_rows(variable: VariableInfo, workers: int, measured: Measured | None) -> Touched | None:
    """Returns the number of touched rows. Unless the gradient is sparse, a step touches all rows. Returns None if the
    number is neither measured nor bounded."""
    rows = float(variable.shape[0]) if variable.shape else 1.0
    if variable.gradient is not GradientKind.SPARSE:
        return Touched(rows, rows, is_bound=False)
    found = None if measured is None else measured.of(variable.name)
    if found is not None and measured is not None:
        merged = found.merged if workers == measured.ranks else found.merged_over(workers)
        apart = found.apart_from(workers)
        return Touched(found.distinct, max(found.distinct, merged), is_bound=False, apart=apart)
    if variable.gradient_rows is None:
        return None
    ids = float(variable.gradient_rows)
    return Touched(ids, max(ids, min(rows, workers * ids)), is_bound=True)
