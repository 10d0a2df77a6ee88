"""Predicts the seconds that a variable costs in a step, by each route it could take.

Bytes are those of `traffic.py`. A route is chosen by the sum of its costs, as if nothing overlapped; a step's time is
its critical path (`critical_path.py`): exchanges share the links, one after the other, beside the computing that does
not wait for them. Ranks (and servers) work side by side: of each kind of work the busiest host's counts. Source of the
volumes: Parallax (EuroSys 2019), section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.plan import Compression, PsOptions, Route, RouteCost
from parallax_runner.planning.cost.constants import Constants, Exchange
from parallax_runner.planning.cost.critical_path import Travel, critical_path_secs
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.planning.cost.server_load import ServerLoad
from parallax_runner.planning.cost.touched import Touched, touched_rows
from parallax_runner.planning.cost.traffic import Traffic, both_ways_of_owners, sent_by_route, traffic


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


class Once(NamedTuple):
    """Seconds a step, before there are values to compute with and when there are gradients."""

    before_secs: float
    after_secs: float

    @property
    def secs(self) -> float:
        """Both."""
        return self.before_secs + self.after_secs


@dataclass(frozen=True)
class CostModel:
    """`measured` says which rows steps touch; without it bounds do. `load` says how servers would share the work."""

    cluster: Cluster
    constants: Constants
    ps: PsOptions = field(default_factory=PsOptions)
    measured: Measured | None = None
    load: ServerLoad = field(default_factory=ServerLoad)
    compression: Compression = Compression.OFF

    def touched(self, variable: VariableInfo) -> Touched | None:
        """Rows of a step; None where nobody knows."""
        return touched_rows(variable, self.cluster.workers, self.measured)

    def cost(self, variable: VariableInfo, route: Route) -> RouteCost | None:
        """What the variable costs by a route; None where nobody knows how many rows travel."""
        touched = self.touched(variable)
        if touched is None:
            return None
        parts = traffic(variable, touched, self.ps if route is Route.PS else PsOptions(), self.compression)
        ways = {
            Route.ALLREDUCE: self._allreduce,
            Route.ALLGATHER: self._allgather,
            Route.PS: self._ps,
            Route.ALLTOALL: self._alltoall,
            Route.LOCAL: self._local,
        }
        sent_bytes = round(sent_by_route(parts, route, self.cluster.workers))
        return RouteCost(route, sent_bytes, *ways[route](variable, touched, parts))

    def once(self, routes: Iterable[Route]) -> Once:
        """What is paid once however many variables take part: those of a route are in flight together. Rows of ranks
        take an alltoall of ids and one of rows before the forward pass, and one behind the backward."""
        used, others, constants = set(routes), self.cluster.workers - 1, self.constants
        before_secs = after_secs = 0.0
        if Route.PS in used:
            before_secs += _waiting(constants.pull, 2)
            after_secs += _waiting(constants.push, 2)
        if Route.ALLTOALL in used and others:
            before_secs += 2 * _waiting(constants.alltoall, others)
            after_secs += _waiting(constants.alltoall, others)
        if Route.ALLREDUCE in used and others:
            after_secs += _waiting(constants.allreduce, 2 * others)
        if Route.ALLGATHER in used and others:
            after_secs += _waiting(constants.allgather, others)
        return Once(before_secs, after_secs)

    def exchange_secs(self, variables: Iterable[VariableInfo], routes: Mapping[str, Route]) -> float | None:
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
                applied += self._apply(variable, touched.distinct)
        return max(0.0, self.measured.step_secs - applied)

    def step_secs(self, variables: Iterable[VariableInfo], routes: Mapping[str, Route]) -> float | None:
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

    def _allreduce(self, variable: VariableInfo, touched: Touched, parts: Traffic) -> tuple[float, ...]:
        exchange, constants = self.constants.allreduce, self.constants
        sent = sent_by_route(parts, Route.ALLREDUCE, self.cluster.workers)
        work = self._apply(variable, touched.merged)
        if variable.gradient is GradientKind.SPARSE:
            # Spread over all rows, and gathered from them again.
            work += self._copy(2 * parts.whole) + parts.pushed * constants.merge_secs_per_byte
        return self._ring(sent) * exchange.secs_per_byte, self.each_secs(exchange, variable), work

    def _allgather(self, variable: VariableInfo, touched: Touched, parts: Traffic) -> tuple[float, ...]:
        workers, exchange = self.cluster.workers, self.constants.allgather
        sent = sent_by_route(parts, Route.ALLGATHER, workers)
        work = self._apply(variable, touched.merged) + parts.pushed * workers * self.constants.merge_secs_per_byte
        return self._ring(sent) * exchange.secs_per_byte, self.each_secs(exchange, variable), work

    def _alltoall(self, variable: VariableInfo, touched: Touched, parts: Traffic) -> tuple[float, ...]:
        cluster, exchange = self.cluster, self.constants.alltoall
        leaves = 1 - cluster.on_a_host / cluster.workers
        both_ways = both_ways_of_owners(parts)
        link = both_ways * cluster.on_a_host * leaves * exchange.secs_per_byte
        # Rows are looked up by their owner, put in order by who asked, and sorted by owner on their way back.
        looking_up = touched.distinct * self.constants.ask_secs_per_row + self._copy(2 * parts.pulled)
        work = self._apply(variable, touched.merged / cluster.workers) + looking_up + self._copy(parts.pushed)
        # Rows weigh the same there and back; what is asked for is 4 bytes beside each.
        before = link / 2 + looking_up
        return link, 0.0, work + parts.pushed * self.constants.merge_secs_per_byte, before

    def _ps(self, variable: VariableInfo, touched: Touched, parts: Traffic) -> tuple[float, ...]:
        cluster, constants = self.cluster, self.constants
        is_sparse = variable.gradient is GradientKind.SPARSE
        share = self.load.busiest_share.get(variable.gradient, 1 / max(1, cluster.servers))
        leaves = 1 - 1 / cluster.hosts if cluster.servers_beside_workers else 1.0
        # The busier of two ends: a host of ranks, and a server that serves all ranks.
        times = max(cluster.on_a_host, cluster.workers * share) * leaves
        pull = times * max(parts.asked, parts.pulled) * constants.pull.secs_per_byte
        push = times * parts.pushed * constants.push.secs_per_byte
        shards = self.load.shards.get(variable.name, 1)
        asking, giving = shards * constants.pull.each_secs, shards * constants.push.each_secs
        looking_up = 0.0
        if is_sparse:
            asking_secs = touched.distinct * constants.ask_secs_per_row
            looking_up = asking_secs + self._copy(cluster.workers * parts.pulled * share + parts.pulled)
        work = looking_up + cluster.workers * parts.pushed * share * constants.server_secs_per_byte
        if is_sparse:
            work += self._copy(parts.pushed)
        work += self._apply(variable, touched.merged) * share
        return pull + push, asking + giving, work, pull + asking + looking_up

    def each_secs(self, exchange: Exchange, variable: VariableInfo) -> float:
        """Of what is in flight with others among the ranks: of rows their values, and their ids or a count of ranks."""
        tensors = 2 if variable.gradient is GradientKind.SPARSE else 1
        return tensors * exchange.each_secs if self.cluster.workers > 1 else 0.0

    def _local(self, variable: VariableInfo, touched: Touched, parts: Traffic) -> tuple[float, ...]:
        if variable.gradient is GradientKind.NONE:
            return 0.0, 0.0, 0.0
        return 0.0, 0.0, self._apply(variable, touched.distinct)

    def _ring(self, sent: float) -> float:
        """Bytes on a host's link of what a rank of a ring sends: one rank of each host sends to another host."""
        return sent if self.cluster.hosts > 1 else 0.0

    def _copy(self, size_bytes: float) -> float:
        """Going over memory once, as a dense update does."""
        return size_bytes * self.constants.apply_dense_secs_per_byte

    def _apply(self, variable: VariableInfo, rows: float) -> float:
        constants = self.constants
        if variable.gradient is GradientKind.SPARSE:
            per_row = variable.row_bytes * constants.apply_sparse_secs_per_byte + constants.apply_sparse_secs_per_row
            return rows * per_row
        return variable.size_bytes * constants.apply_dense_secs_per_byte


def _waiting(exchange: Exchange, rounds: int) -> float:
    return exchange.overhead_secs + rounds * exchange.latency_secs
