"""The ps route: servers store a variable, sharded by rows. Ranks pull values and push gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.plan.plan import VariablePlan
from parallax_runner.planning.cost.touched import Touched
from parallax_runner.planning.cost.traffic import Traffic, traffic
from parallax_runner.routes.route import Paid, PaidOnce, Route, Volume, waiting_secs

if TYPE_CHECKING:
    from parallax_runner.planning.cost.model import CostModel


class Ps(Route):
    """An exchange with servers. A server sums the gradients that all ranks push, and updates its variables."""

    name = "ps"
    rewriting = "parallax_runner.routes.ps.rewriting"
    exchanges: ClassVar[Mapping[str, Volume]] = {
        "pull": lambda ranks, size, servers: (2, size * max(1.0, ranks / servers)),
        "push": lambda ranks, size, servers: (2, size * max(1.0, ranks / servers)),
    }
    on_servers = True
    leads_to_gathering = True
    has_owners = True
    all_of_it = "all servers"

    def takes(self, variable: VariableInfo, *, servers: int) -> bool:
        """Returns true for a variable that has a gradient and can be moved, if there are servers."""
        return variable.gradient is not GradientKind.NONE and variable.immovable_op is None and servers > 0

    def sent_bytes(self, parts: Traffic, workers: int) -> float:
        """Returns the number of bytes in requested ids, pulled values and pushed gradients."""
        return parts.asked + parts.pulled + parts.pushed

    def traffic(self, variable: VariableInfo, touched: Touched, options: CommOptions) -> Traffic:
        """Returns the traffic, which depends on where lookups run."""
        looks_up_there = options.ps.boundary_between_workers_and_servers
        return traffic(variable, touched, options.compression, looks_up_there=looks_up_there)

    def paid(self, model: CostModel, variable: VariableInfo, touched: Touched, parts: Traffic) -> Paid:
        """Returns the costs at the busier end, which is either a host with ranks or a server that serves all ranks."""
        cluster, constants = model.cluster, model.constants
        is_sparse = variable.gradient is GradientKind.SPARSE
        share = model.load.busiest_share.get(variable.gradient, 1 / max(1, cluster.servers))
        leaves = 1 - 1 / cluster.hosts if cluster.servers_beside_workers else 1.0
        times = max(cluster.on_a_host, cluster.workers * share) * leaves
        pull = times * max(parts.asked, parts.pulled) * constants.pull.secs_per_byte
        push = times * parts.pushed * constants.push.secs_per_byte
        shards = model.load.shards.get(variable.name, 1)
        asking, giving = shards * constants.pull.each_secs, shards * constants.push.each_secs
        looking_up = 0.0
        if is_sparse:
            asking_secs = touched.distinct * constants.ask_secs_per_row
            looking_up = asking_secs + model.copy_secs(cluster.workers * parts.pulled * share + parts.pulled)
        work = looking_up + cluster.workers * parts.pushed * share * constants.server_secs_per_byte
        if is_sparse:
            work += model.copy_secs(parts.pushed)
        work += model.apply_secs(variable, touched.merged) * share
        return Paid(pull + push, asking + giving, work, before_secs=pull + asking + looking_up)

    def paid_once(self, model: CostModel, variables: Sequence[VariableInfo]) -> PaidOnce:
        """Returns the waiting time for a request and a response, once for pulling and once for pushing."""
        return PaidOnce(waiting_secs(model.constants.pull, 2), waiting_secs(model.constants.push, 2))

    def reason(self, variable: VariableInfo) -> str:
        """Returns the reason as one sentence."""
        if variable.server is not None:
            return f"the variable's device scope names /job:ps/task:{variable.server}"
        if variable.gradient is GradientKind.DENSE:
            return "dense, on servers"
        return "sparse: only the rows that a step touches are sent, to and from their servers"

    def place(self, variable: VariablePlan, workers: int) -> str:
        """Returns text such as «server 0 ×2, server 1 ×2»."""
        counts = Counter(shard.server for shard in variable.shards)
        return ", ".join(
            f"server {server}" + (f" ×{count}" if count > 1 else "") for server, count in sorted(counts.items())
        )


ROUTE = Ps()
