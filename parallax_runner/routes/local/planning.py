"""The local route: nothing is exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.planning.cost.touched import Touched
from parallax_runner.planning.cost.traffic import Traffic
from parallax_runner.routes.route import Paid, Route

if TYPE_CHECKING:
    from parallax_runner.planning.cost.model import CostModel


class Local(Route):
    """No exchange: each rank keeps its own copy of the variable, or there is only one process."""

    name = "local"
    rewriting = ""
    sends_whole = True
    sends_nothing = True

    def takes(self, variable: VariableInfo, *, servers: int) -> bool:
        """Returns true for a variable without a gradient."""
        return variable.gradient is GradientKind.NONE

    def sent_bytes(self, parts: Traffic, workers: int) -> float:
        """Returns 0, because nothing is sent."""
        return 0.0

    def paid(self, model: CostModel, variable: VariableInfo, touched: Touched, parts: Traffic) -> Paid:
        """Returns only the cost of the update."""
        if variable.gradient is GradientKind.NONE:
            return Paid(0.0, 0.0, 0.0)
        return Paid(0.0, 0.0, model.apply_secs(variable, touched.distinct))

    def reason(self, variable: VariableInfo) -> str:
        """Returns the reason as one sentence."""
        return "no gradient: each rank keeps its own copy" if variable.gradient is GradientKind.NONE else "one process"


ROUTE = Local()
