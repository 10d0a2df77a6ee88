"""Predicts the seconds that a variable costs in a step by each route it could take.

Bytes come from `traffic.py`. A route is chosen by the sum of its costs, as if nothing overlapped. A step's time is its
critical path (`critical_path.py`): exchanges use the links one after another, in parallel with the computing that does
not wait for them. Ranks (and servers) work in parallel, so that the busiest host counts for each kind of work. Source
of the volumes: Parallax (EuroSys 2019), section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.plan.plan import RouteCost
from parallax_runner.planning.cost.constants import Constants, Exchange
from parallax_runner.planning.cost.critical_path import Travel, critical_path_secs
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.planning.cost.server_load import ServerLoad
from parallax_runner.planning.cost.touched import Touched, touched_rows
from parallax_runner.planning.routes.registry import route_named
from parallax_runner.planning.routes.route import PaidOnce


@dataclass(frozen=True)
class Cluster:
    """The processes that share a link. Each host has `workers_per_host` ranks. A server has its own host. With
    `servers_beside_workers`, server i runs on host i, together with the ranks there."""

    workers: int
    servers: int
    workers_per_host: int = 1
    servers_beside_workers: bool = False

    @property
    def on_a_host(self) -> int:
        """The number of ranks on the fullest host."""
        return min(self.workers, self.workers_per_host)

    @property
    def hosts(self) -> int:
        """The number of hosts that have ranks."""
        return -(-self.workers // self.workers_per_host)


@dataclass(frozen=True)
class CostModel:
    """The cost model. `measured` says which rows steps touch; without it, upper bounds are used. `load` says how
    servers share the work."""

    cluster: Cluster
    constants: Constants
    options: CommOptions = field(default_factory=CommOptions)
    measured: Measured | None = None
    load: ServerLoad = field(default_factory=ServerLoad)

    def touched(self, variable: VariableInfo) -> Touched | None:
        """Returns the rows that a step touches, or None if unknown."""
        return touched_rows(variable, self.cluster.workers, self.measured)

    def cost(self, variable: VariableInfo, route: str) -> RouteCost | None:
        """Returns the variable's costs by a route, or None if the number of rows is unknown."""
        found, touched = route_named(route), self.touched(variable)
        if touched is None:
            return None
        parts = found.traffic(variable, touched, self.options)
        sent_bytes = round(found.sent_bytes(parts, self.cluster.workers))
        return RouteCost(route, sent_bytes, *found.paid(self, variable, touched, parts))

    def once(self, routes: Iterable[str]) -> PaidOnce:
        """Returns the costs that are paid once for each of these routes, for any number of variables."""
        paid = [route_named(route).paid_once(self.constants, self.cluster.workers) for route in dict.fromkeys(routes)]
        return PaidOnce(sum(one.before_secs for one in paid), sum(one.after_secs for one in paid))

    def exchange_secs(self, variables: Iterable[VariableInfo], routes: Mapping[str, str]) -> float | None:
        """Returns the seconds of a step that are not computing, or None if a part is unknown."""
        total = self.once(routes[variable.name] for variable in variables).secs
        for variable in variables:
            cost = self.cost(variable, routes[variable.name])
            if cost is None:
                return None
            total += cost.secs
        return total

    def compute_secs(self) -> float | None:
        """Returns the seconds of the forward and backward pass, or None if they were not measured. Updates in the
        measured step are subtracted, because routes count them."""
        if self.measured is None:
            return None
        applied = 0.0
        for variable in self.measured.variables:
            touched = self.touched(variable)
            if touched is not None and variable.gradient is not GradientKind.NONE:
                applied += self.apply_secs(variable, touched.distinct)
        return max(0.0, self.measured.step_secs - applied)

    def step_secs(self, variables: Iterable[VariableInfo], routes: Mapping[str, str]) -> float | None:
        """Returns the seconds of the critical path of a step, or None if a part is unknown."""
        variables, compute_secs = list(variables), self.compute_secs()
        costs = [self.cost(variable, routes[variable.name]) for variable in variables]
        if compute_secs is None or None in costs:
            return None
        once = self.once(routes.values())
        travels = [Travel(needed_at=0.0, before_secs=once.before_secs, appears_at=1.0, after_secs=once.after_secs)]
        for variable, cost in zip(variables, costs, strict=True):
            assert cost is not None
            after_secs = cost.secs - cost.before_secs
            travels.append(Travel(variable.needed_at, cost.before_secs, variable.appears_at, after_secs))
        return critical_path_secs(compute_secs, travels)

    def each_secs(self, exchange: Exchange, variable: VariableInfo) -> float:
        """Returns the seconds that depend on the number of tensors in flight. A sparse gradient has two: values, and
        ids or a count of ranks."""
        tensors = 2 if variable.gradient is GradientKind.SPARSE else 1
        return tensors * exchange.each_secs if self.cluster.workers > 1 else 0.0

    def ring_bytes(self, sent: float) -> float:
        """Returns the bytes on a host's link if a rank of a ring sends `sent`: one rank of each host sends to another
        host."""
        return sent if self.cluster.hosts > 1 else 0.0

    def copy_secs(self, size_bytes: float) -> float:
        """Returns the seconds of one pass over memory, as in a dense update."""
        return size_bytes * self.constants.apply_dense_secs_per_byte

    def apply_secs(self, variable: VariableInfo, rows: float) -> float:
        """Returns the seconds of an update of `rows` rows, or of a whole dense variable."""
        constants = self.constants
        if variable.gradient is GradientKind.SPARSE:
            per_row = variable.row_bytes * constants.apply_sparse_secs_per_byte + constants.apply_sparse_secs_per_row
            return rows * per_row
        return variable.size_bytes * constants.apply_dense_secs_per_byte
