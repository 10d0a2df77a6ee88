"""Predicts the seconds that a variable costs in a step, by each route it could take.

Bytes are those of `traffic.py`. A route is chosen by the sum of its costs, as if nothing overlapped; a step's time is
its critical path (`critical_path.py`): exchanges share the links, one after the other, beside the computing that does
not wait for them. Ranks (and servers) work side by side: of each kind of work the busiest host's counts. Source of the
volumes: Parallax (EuroSys 2019), section 3.
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
    """Who shares a link: `workers_per_host` ranks a host; a server has a host of its own, or, with
    `servers_beside_workers`, that of the ranks with its number."""

    workers: int
    servers: int
    workers_per_host: int = 1
    servers_beside_workers: bool = False

    @property
    def on_a_host(self) -> int:
        """Ranks of the fullest host."""
        return min(self.workers, self.workers_per_host)

    @property
    def hosts(self) -> int:
        """Hosts that have ranks."""
        return -(-self.workers // self.workers_per_host)


@dataclass(frozen=True)
class CostModel:
    """`measured` says which rows steps touch; without it bounds do. `load` says how servers would share the work."""

    cluster: Cluster
    constants: Constants
    options: CommOptions = field(default_factory=CommOptions)
    measured: Measured | None = None
    load: ServerLoad = field(default_factory=ServerLoad)

    def touched(self, variable: VariableInfo) -> Touched | None:
        """Rows of a step; None where nobody knows."""
        return touched_rows(variable, self.cluster.workers, self.measured)

    def cost(self, variable: VariableInfo, route: str) -> RouteCost | None:
        """What the variable costs by a route; None where nobody knows how many rows travel."""
        found, touched = route_named(route), self.touched(variable)
        if touched is None:
            return None
        parts = found.traffic(variable, touched, self.options)
        sent_bytes = round(found.sent_bytes(parts, self.cluster.workers))
        return RouteCost(route, sent_bytes, *found.paid(self, variable, touched, parts))

    def once(self, routes: Iterable[str]) -> PaidOnce:
        """What is paid once however many variables take each of these routes."""
        paid = [route_named(route).paid_once(self.constants, self.cluster.workers) for route in dict.fromkeys(routes)]
        return PaidOnce(sum(one.before_secs for one in paid), sum(one.after_secs for one in paid))

    def exchange_secs(self, variables: Iterable[VariableInfo], routes: Mapping[str, str]) -> float | None:
        """Of a step, all that is not computing; None where a part of it is unknown."""
        total = self.once(routes[variable.name] for variable in variables).secs
        for variable in variables:
            cost = self.cost(variable, routes[variable.name])
            if cost is None:
                return None
            total += cost.secs
        return total

    def compute_secs(self) -> float | None:
        """Of a step, forward and backward pass; None where it was not measured. The measured local step also applies
        updates, which routes count."""
        if self.measured is None:
            return None
        applied = 0.0
        for variable in self.measured.variables:
            touched = self.touched(variable)
            if touched is not None and variable.gradient is not GradientKind.NONE:
                applied += self.apply_secs(variable, touched.distinct)
        return max(0.0, self.measured.step_secs - applied)

    def step_secs(self, variables: Iterable[VariableInfo], routes: Mapping[str, str]) -> float | None:
        """The critical path of a step; None where a part of it is unknown."""
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
        """Of what is in flight with others among the ranks: of rows their values, and their ids or a count of ranks."""
        tensors = 2 if variable.gradient is GradientKind.SPARSE else 1
        return tensors * exchange.each_secs if self.cluster.workers > 1 else 0.0

    def ring_bytes(self, sent: float) -> float:
        """Bytes on a host's link of what a rank of a ring sends: one rank of each host sends to another host."""
        return sent if self.cluster.hosts > 1 else 0.0

    def copy_secs(self, size_bytes: float) -> float:
        """Going over memory once, as a dense update does."""
        return size_bytes * self.constants.apply_dense_secs_per_byte

    def apply_secs(self, variable: VariableInfo, rows: float) -> float:
        """An update of so many rows; of all of a dense variable."""
        constants = self.constants
        if variable.gradient is GradientKind.SPARSE:
            per_row = variable.row_bytes * constants.apply_sparse_secs_per_byte + constants.apply_sparse_secs_per_row
            return rows * per_row
        return variable.size_bytes * constants.apply_dense_secs_per_byte
