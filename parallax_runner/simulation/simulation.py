"""Models the performance of each communication mode on 1 to N workers, from a measurement and constants."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallax_runner.config.comm_mode import CommMode, choices, mode_with
from parallax_runner.config.schema import RoutesConfig
from parallax_runner.errors import PlanError, Setting
from parallax_runner.plan.comm_options import CommOptions, PsOptions
from parallax_runner.planning.cost.constants import Constants
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.planning.cost.model import Cluster, CostModel
from parallax_runner.planning.cost.server_load import ServerLoad
from parallax_runner.planning.cut import Cut, cut_variables
from parallax_runner.planning.decide import decided, with_options
from parallax_runner.planning.lookahead import in_effect
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan
from parallax_runner.routes.local.planning import ROUTE as LOCAL
from parallax_runner.routes.registry import route_named
from parallax_runner.routes.traits import route_names

# Up to this maximum, every number of workers is simulated. If the maximum is larger, only the numbers shown in a table
# are simulated.
MOST_IN_A_ROW = 64


@dataclass(frozen=True)
class Point:
    """The prediction for one communication mode and one number of workers.

    Times in milliseconds are per step, and the throughput is the total of all workers. `efficiency` is this throughput
    divided by `workers` times the throughput of one device. `routes` contains the number of variables on each route.
    """

    comm: str
    workers: int
    hosts: int
    step_ms: float
    compute_ms: float
    exchange_ms: float
    examples_per_sec: float
    words_per_sec: float | None
    efficiency: float
    sent_bytes: int
    routes: dict[str, int]


@dataclass(frozen=True)
class Simulation:
    """All points and the assumptions. The points of each `comm` are in ascending order of workers."""

    points: tuple[Point, ...]
    assumptions: tuple[str, ...]

    @property
    def comms(self) -> tuple[str, ...]:
        """The names of the modes that have points."""
        return tuple(dict.fromkeys(point.comm for point in self.points))

    def at(self, comm: str, workers: int) -> Point:
        """Returns one point. Raises KeyError if there is no such point."""
        for point in self.points:
            if (point.comm, point.workers) == (comm, workers):
                return point
        raise KeyError(f"{comm} on {workers} workers")


def simulate(
    measured: Measured,
    constants: Constants,
    *,
    workers: int,
    workers_per_host: int,
    options: CommOptions,
) -> Simulation:
    """Simulates every communication mode on 1 to `workers` ranks.

    Each host has a server, as in the original Parallax. Only compression, lookahead and the server options from
    `options` are used, and all steps wait for all workers.

    Raises PlanError if no mode can be modelled.
    """

    options = CommOptions(ps=options.ps, compression=options.compression, lookahead=options.lookahead)

    @functools.cache
    def load(hosts: int, together: bool) -> ServerLoad:
        return _load(measured, hosts, constants, options.ps, together=together)

    points: list[Point] = []
    left_out = []
    for comm, mode in simulated_modes().items():
        try:
            for number in numbers_of_workers(workers):
                hosts = -(-number // workers_per_host)
                cluster = Cluster(number, hosts, workers_per_host, servers_beside_workers=True)
                servers = load(hosts, mode.is_all_on_servers)
                points.append(_point(comm, CostModel(cluster, constants, options, measured, servers)))
        except PlanError as error:
            left_out.append(f"{comm} is omitted: {error}")
            points = [point for point in points if point.comm != comm]
    if not points:
        raise PlanError(f"no mode can be modelled: {'; '.join(left_out)}").about(Setting("action", "simulate"))
    return Simulation(tuple(points), (*_assumptions(measured, constants, workers_per_host), *left_out))


def simulated_modes() -> dict[str, CommMode]:
    """Returns the modes that exchange gradients, by name, in the order of their routes for sparse gradients.

    Of two modes with the same sparse route, the mode that also uses this route for dense gradients comes first. The
    mode whose routes the cost model chooses comes last.
    """

    def position(routes: RoutesConfig | None) -> tuple[float, bool]:
        return (math.inf, False) if routes is None else (known.index(routes.sparse), routes.dense != routes.sparse)

    known = route_names()
    modes = {name: mode_with(routes) for name, routes in sorted(choices().items(), key=lambda one: position(one[1]))}
    return {name: mode for name, mode in modes.items() if not mode.is_one_process}


def _load(measured: Measured, servers: int, constants: Constants, ps: PsOptions, *, together: bool) -> ServerLoad:
    cut = cut_variables(measured.variables, servers, Cut.ALIKE)
    return ServerLoad.of(cut, servers, measured, constants, together=together, ps=ps)


def numbers_of_workers(most: int) -> list[int]:
    """Returns the numbers 1 to `most`, or powers of two and `most` if there are too many numbers for a plot."""
    if most <= MOST_IN_A_ROW:
        return list(range(1, most + 1))
    return shown_numbers(most)


def shown_numbers(most: int) -> list[int]:
    """Returns the powers of two below `most`, followed by `most`."""
    powers = [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent < most]
    return [*powers, most]


def _point(comm: str, model: CostModel) -> Point:
    measured = model.measured
    assert measured is not None
    variables, workers = measured.variables, model.cluster.workers
    if workers == 1:  # one device, regardless of `comm`
        routes = dict.fromkeys((variable.name for variable in variables), LOCAL.name)
    else:
        model, routes = _planned(comm, measured, model)
    compute_secs, step_secs = model.compute_secs(), model.step_secs(variables, routes)
    if compute_secs is None or step_secs is None:
        raise PlanError("simulate: the number of rows that a step touches is unknown; measure the graph again")
    step_secs = measured.step_secs if workers == 1 else step_secs
    examples_per_sec = workers * measured.batch_size / step_secs
    words = measured.words_per_example
    return Point(
        comm=comm,
        workers=workers,
        hosts=model.cluster.hosts,
        step_ms=1000 * step_secs,
        compute_ms=1000 * compute_secs,
        exchange_ms=1000 * (step_secs - compute_secs),
        examples_per_sec=examples_per_sec,
        words_per_sec=None if words is None else words * examples_per_sec,
        efficiency=measured.step_secs / step_secs,
        sent_bytes=_sent_bytes(measured, model, routes),
        routes=dict(Counter(route for route in routes.values() if not route_named(route).sends_nothing)),
    )


def _planned(comm: str, measured: Measured, model: CostModel) -> tuple[CostModel, dict[str, str]]:
    """Returns the routes of the plan for several workers, and the cost model with the options that the plan uses."""
    request = PlanRequest(
        comm=comm,
        variables=measured.variables,
        fingerprint=measured.fingerprint,
        workers=model.cluster.workers,
        servers=model.cluster.servers,
        options=model.options,
        spans_hosts=model.cluster.hosts > 1,
    )
    request = decided(request, model)
    plan = make_plan(request)
    return with_options(model, in_effect(request)), {planned.name: planned.route for planned in plan.variables}


def _sent_bytes(measured: Measured, model: CostModel, routes: Mapping[str, str]) -> int:
    """Returns the bytes that a rank sends per step. Variables whose cost is unknown are not counted."""
    costs = [model.cost(variable, routes[variable.name]) for variable in measured.variables]
    return sum(cost.sent_bytes for cost in costs if cost is not None)


def _assumptions(measured: Measured, constants: Constants, workers_per_host: int) -> tuple[str, ...]:
    samples = max((rows.samples for rows in measured.rows), default=0)
    return (
        "all numbers are modelled; nothing was run on this cluster",
        f"a step on one device takes {1000 * measured.step_secs:.4g} ms, measured or given on {measured.made}",
        f"constants: {constants.source}",
        f"{workers_per_host} worker(s) per host; each host has one server, which shares the host's links with the "
        "host's workers; sparse variables are split into one piece per server; dense variables are split, and all "
        "pieces are placed, as in a plan, regardless of cluster.servers and partition",
        "steps wait for all workers, each with one replica, regardless of comm.sync, comm.ps.staleness, "
        "comm.ps.backup_workers and cluster.replicas_per_worker; comm=mpi uses Horovod's allgather",
        "exchanges use the links one after another, in parallel with computation that does not wait for them",
        "comm.lookahead=auto requests rows in advance under comm=sharded and comm=auto, if there are several hosts and "
        "the predicted step is shorter; batches are assumed to be independent of each other",
        f"the number of rows that several ranks touch together is computed from {samples} batches: as the mean over "
        "choices of one batch per rank or, if there are more ranks than batches, by extrapolation with Chao's estimate "
        "of unseen rows"
        if samples
        else "different ranks touch different rows, up to all rows of a variable",
    )


def as_json(simulation: Simulation) -> dict[str, Any]:
    """Returns the points and assumptions as JSON values."""
    return {"modelled": True} | dataclasses.asdict(simulation)
