"""The allreduce route: gradients are averaged over the ranks, and each rank keeps a copy of the variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.planning.cost.touched import Touched
from parallax_runner.planning.cost.traffic import Traffic
from parallax_runner.routes.route import Paid, PaidOnce, Route, Volume, waiting_secs

if TYPE_CHECKING:
    from parallax_runner.planning.cost.model import CostModel


class Allreduce(Route):
    """A ring allreduce. Sparse gradients are first made dense (routes/allreduce/densified.py)."""

    name = "allreduce"
    rewriting = "parallax_runner.routes.allreduce.rewriting"
    exchanges: ClassVar[Mapping[str, Volume]] = {
        "allreduce": lambda ranks, size, _: (2 * (ranks - 1), 2 * size * (ranks - 1) / ranks)
    }
    is_collective = True
    kept_gradient = GradientKind.DENSE
    sends_whole = True
    all_of_it = "all allreduces"

    def takes(self, variable: VariableInfo, *, servers: int) -> bool:
        """Returns true for every variable with a gradient."""
        return variable.gradient is not GradientKind.NONE

    def sent_bytes(self, parts: Traffic, workers: int) -> float:
        """Returns the number of bytes that a rank sends in a ring allreduce. The rank passes all but one part of the
        gradient to the next rank, twice."""
        return 2 * parts.whole * (workers - 1) / workers

    def paid(self, model: CostModel, variable: VariableInfo, touched: Touched, parts: Traffic) -> Paid:
        """Returns the costs of the ring and of updating all rows."""
        exchange, constants = model.constants.allreduce, model.constants
        sent = self.sent_bytes(parts, model.cluster.workers)
        work = model.apply_secs(variable, touched.merged)
        if variable.gradient is GradientKind.SPARSE:
            # Rows are scattered into a dense tensor, and later gathered from it again.
            work += model.copy_secs(2 * parts.whole) + parts.pushed * constants.merge_secs_per_byte
        return Paid(model.ring_bytes(sent) * exchange.secs_per_byte, model.each_secs(exchange, variable), work)

    def paid_once(self, model: CostModel, variables: Sequence[VariableInfo]) -> PaidOnce:
        """Returns the costs of two passes around the ring."""
        workers = model.cluster.workers
        if workers == 1:
            return PaidOnce()
        return PaidOnce(after_secs=waiting_secs(model.constants.allreduce, 2 * (workers - 1)))

    def reason(self, variable: VariableInfo) -> str:
        """Returns the reason as one sentence."""
        return "dense: every rank needs the whole gradient, which the ranks exchange in a ring"


ROUTE = Allreduce()
