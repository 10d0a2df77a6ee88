"""Predicts how many seconds a variable adds to a step on each route that it can take.

`traffic.py` computes the bytes. A route is chosen by the sum of its costs, as if nothing overlapped. The time of a step
is the length of its critical path (`critical_path.py`): exchanges use the links one after another, in parallel with the
computation that does not wait for them. Ranks and servers work in parallel, so the busiest host determines the time for
each kind of work. The byte counts follow Parallax (EuroSys 2019), section 3.
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
from parallax_runner.routes.registry import route_named
from parallax_runner.routes.route import PaidOnce


@dataclass(frozen=True)
class Cluster:
    """The processes of a run and how they are distributed over hosts.

    Each host has `workers_per_host` ranks. By default, each server has its own host. With `servers_beside_workers`,
    server i runs on host i, together with the ranks on that host.
    """

    workers: int
    servers: int
    workers_per_host: int = 1
    servers_beside_workers: bool = False

    @property
    def on_a_host(self) -> int:
        """The number of ranks on the host with the most ranks."""
        return min(self.workers, self.workers_per_host)

    @property
    def hosts(self) -> int:
        """The number of hosts that have ranks."""
        return -(-self.workers // self.workers_per_host)


@dataclass(frozen=True)
class CostModel:
    """The cost model.

    `measured` states how many rows a step touches. If it is None, upper bounds are used. `load` describes how the work
    is distributed over the servers.
    """

    cluster: Cluster
    constants: Constants
    options: CommOptions = field(default_factory=CommOptions)
    measured: Measured | None = None
    load: ServerLoad = field(default_factory=ServerLoad)

    def touched(self, variable: VariableInfo) -> Touched | None:
        """Returns the number of rows that a step touches, or None if the number is unknown."""
        return touched_rows(variable, self.cluster.workers, self.measured)

    def cost(self, variable: VariableInfo, route: str) -> RouteCost | None:
        """Returns the variable's costs on a route, or None if the number of touched rows is unknown."""
        found, touched = route_named(route), self.touched(variable)
        if touched is None:
            return None
        parts = found.traffic(variable, touched, self.options)
        sent_bytes = round(found.sent_bytes(parts, self.cluster.workers))
        return RouteCost(route, sent_bytes, *found.paid(self, variable, touched, parts))

    def once(self, variables: Iterable[VariableInfo], routes: Mapping[str, str]) -> PaidOnce:
        """Returns the sum of the costs that each route adds once, regardless of the number of variables on it."""
        on_route: dict[str, list[VariableInfo]] = {}
        for variable in variables:
            on_route.setdefault(routes[variable.name], []).append(variable)
        paid = [route_named(route).paid_once(self, own) for route, own in on_route.items()]
        return PaidOnce(*(sum(secs) for secs in zip(*paid, strict=True))) if paid else PaidOnce()

    def exchange_secs(self, variables: Iterable[VariableInfo], routes: Mapping[str, str]) -> float | None:
        """Returns the time in seconds that a step spends on exchanges and updates, or None if any part of it is
        unknown."""
        variables = list(variables)
        total = self.once(variables, routes).secs
        for variable in variables:
            cost = self.cost(variable, routes[variable.name])
            if cost is None:
                return None
            total += cost.secs
        return total

    def compute_secs(self) -> float | None:
        """Returns the time in seconds of the forward and backward passes, or None if it was not measured.

        The time of the updates is subtracted from the measured step, because the costs of routes include this time.
        """
        if self.measured is None:
            return None
        applied = 0.0
        for variable in self.measured.variables:
            touched = self.touched(variable)
            if touched is not None and variable.gradient is not GradientKind.NONE:
                applied += self.apply_secs(variable, touched.distinct)
        return max(0.0, self.measured.step_secs - applied)

    def step_secs(self, variables: Iterable[VariableInfo], routes: Mapping[str, str]) -> float | None:
        """Returns the length of a step's critical path in seconds, or None if any part of it is unknown."""
        variables, compute_secs = list(variables), self.compute_secs()
        costs = [self.cost(variable, routes[variable.name]) for variable in variables]
        if compute_secs is None or None in costs:
            return None
        once = self.once(variables, routes)
        travels = [Travel(0.0, once.before_secs, 1.0, once.after_secs, once.aside_secs)]
        for variable, cost in zip(variables, costs, strict=True):
            assert cost is not None
            own = Travel(variable.needed_at, cost.before_secs, variable.appears_at, cost.after_secs, cost.aside_secs)
            travels.append(own)
        return critical_path_secs(compute_secs, travels)

    def each_secs(self, exchange: Exchange, variable: VariableInfo) -> float:
        """Returns the part of an exchange's time, in seconds, that depends on the number of tensors in flight.

        A sparse gradient has two tensors: the values, and either the ids or the number of ranks that touched each row.
        """
        tensors = 2 if variable.gradient is GradientKind.SPARSE else 1
        return tensors * exchange.each_secs if self.cluster.workers > 1 else 0.0

    def ring_bytes(self, sent: float) -> float:
        """Returns the bytes on a host's link if each rank in a ring sends `sent` bytes.

        Only one rank on each host sends to another host.
        """
        return sent if self.cluster.hosts > 1 else 0.0

    def copy_secs(self, size_bytes: float) -> float:
        """Returns the time in seconds for one pass over `size_bytes` of memory, as in a dense update."""
        return size_bytes * self.constants.apply_dense_secs_per_byte

    def apply_secs(self, variable: VariableInfo, rows: float) -> float:
        """Returns the time in seconds for updating `rows` rows, or a whole dense variable."""
        constants = self.constants
        if variable.gradient is GradientKind.SPARSE:
            per_row = variable.row_bytes * constants.apply_sparse_secs_per_byte + constants.apply_sparse_secs_per_row
            return rows * per_row
        return variable.size_bytes * constants.apply_dense_secs_per_byte
