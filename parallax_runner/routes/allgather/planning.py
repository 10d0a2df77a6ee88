"""The allgather route: ranks exchange the rows that they touched, and each rank keeps a copy of the variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.cost.touched import Touched
from parallax_runner.planning.cost.traffic import Traffic
from parallax_runner.routes.route import Paid, PaidOnce, Route, Volume, waiting_secs

if TYPE_CHECKING:
    from parallax_runner.planning.cost.model import CostModel


class Allgather(Route):
    """An allgather by the backend, or by MPI's Allgatherv function (`comm.mpi.use_allgatherv`)."""

    name = "allgather"
    rewriting = "parallax_runner.routes.allgather.rewriting"
    exchanges: ClassVar[Mapping[str, Volume]] = {"allgather": lambda ranks, size, _: (ranks - 1, size * (ranks - 1))}
    is_collective = True
    leads_to_gathering = True
    kept_gradient = GradientKind.SPARSE
    all_of_it = "all allgathers"

    def takes(self, variable: VariableInfo, *, servers: int) -> bool:
        """Returns true for every variable with a sparse gradient."""
        return variable.gradient is GradientKind.SPARSE

    def sent_bytes(self, parts: Traffic, workers: int) -> float:
        """Returns the number of bytes that a rank sends when it sends its rows to all other ranks."""
        return parts.pushed * (workers - 1)

    def paid(self, model: CostModel, variable: VariableInfo, touched: Touched, parts: Traffic) -> Paid:
        """Returns the costs of the ring and of merging the rows of all ranks."""
        workers, exchange = model.cluster.workers, model.constants.allgather
        work = model.apply_secs(variable, touched.merged)
        work += parts.pushed * workers * model.constants.merge_secs_per_byte
        link = model.ring_bytes(self.sent_bytes(parts, workers)) * exchange.secs_per_byte
        return Paid(link, model.each_secs(exchange, variable), work)

    def paid_once(self, model: CostModel, variables: Sequence[VariableInfo]) -> PaidOnce:
        """Returns the costs of one pass around the ring."""
        workers = model.cluster.workers
        if workers == 1:
            return PaidOnce()
        return PaidOnce(after_secs=waiting_secs(model.constants.allgather, workers - 1))

    def reason(self, variable: VariableInfo) -> str:
        """Returns the reason as one sentence."""
        return "sparse, without servers: ranks exchange the rows they touched"

    def lengths_vary(self, plan: Plan) -> bool:
        """Returns whether the backend gathers the rows, whose number changes from step to step. False if MPI gathers
        them."""
        return not plan.options.use_allgatherv

    def may_fuse(self, plan: Plan) -> bool:
        """Returns whether the backend gathers the rows. Without fusion, each gradient would be a separate exchange."""
        return not plan.options.use_allgatherv


ROUTE = Allgather()
