"""Chooses the cheapest route for each variable (`comm=auto`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.collectives.chosen import backend
from parallax_runner.plan.plan import RouteCost
from parallax_runner.planning.cost.model import CostModel
from parallax_runner.routes.registry import all_routes, route_named, route_of_kept

# Dtypes that servers can sum. TensorFlow's accumulators have kernels for these dtypes, except for bfloat16, which is
# summed as float32.
ADDED_UP = frozenset(["bfloat16", "float16", "float32", "float64"])
# Above this fraction of touched rows, row exchange saves almost nothing over a ring allreduce.
NEARLY_ALL = 0.9
# Plans whose step times differ by less than this fraction are treated as equal, because the model's errors are larger
# (docs/benchmarks.md).
ALIKE = 0.1


@dataclass(frozen=True)
class Choice:
    """The route of each variable and the reason for that route. `notes` states the total cost of each alternative."""

    routes: Mapping[str, str]
    reasons: Mapping[str, str]
    notes: tuple[str, ...] = ()


def choose_routes(variables: Sequence[VariableInfo], model: CostModel) -> Choice:
    """Chooses a route for each variable.

    Within each family of routes, each variable gets its cheapest route. The family that adds the least time to a step
    is then chosen. Finally, variables whose rows are nearly all touched switch to allreduce if that does not make the
    step noticeably slower.

    A variable with an unknown number of touched rows gets a route that sends rows to their owners. A variable whose
    vocabulary grows gets a route on which it can grow, whatever the family.
    """
    found = list(_candidates(variables, model))
    can_be_sent = [routes for routes in found if not_carried(variables, routes) is None]
    totals = [(_total(variables, model, routes), routes) for routes in can_be_sent or found]
    cheapest_first = sorted(totals, key=lambda pair: pair[0])
    best = _dense_where_alike(variables, model, cheapest_first[0][1])
    by_name: dict[str, float] = {}
    for total_secs, routes in cheapest_first:
        by_name.setdefault(_named(routes), total_secs)
    told = ", ".join(f"{1000 * total_secs:.3g} ms with {name}" for name, total_secs in by_name.items())
    return Choice(
        routes=best,
        reasons={variable.name: _told(variable, model, best[variable.name]) for variable in variables},
        notes=(f"auto: the exchanges and updates in a step would take at best {told}",)
        if model.cluster.workers > 1
        else (),
    )


def _candidates(variables: Sequence[VariableInfo], model: CostModel) -> Iterator[dict[str, str]]:
    """Yields the plans to compare: for each family, the plan with the shortest total time, and the plan with the
    shortest time within the step. Exchanges during another step cost nothing unless they saturate the links."""
    for family in families():
        for cost_of in (lambda cost: cost.secs, lambda cost: cost.own_secs):
            routes = _routes(variables, model, family, cost_of)
            if routes is not None:
                yield routes


def _named(routes: Mapping[str, str]) -> str:
    """Returns the names of the routes in use. A family's cheapest plan does not always use all routes of the family."""
    taken = [route.name for route in all_routes() if route.name in routes.values() and not route.sends_nothing]
    return " and ".join(taken) or "no exchange"


def families() -> Iterator[tuple[str, ...]]:
    """Yields the sets of routes that a plan can use.

    Whole sets are compared, because some costs of a route are paid once for all variables on the route. The rows of
    variables whose vocabularies do not grow have at most one kind of owner.
    """
    travelling = [route for route in all_routes() if not route.sends_nothing]
    others = [route.name for route in travelling if not route.has_owners]
    owners = [(route.name,) for route in travelling if route.has_owners]
    for number in range(len(others), -1, -1):
        for family in itertools.combinations(others, number):
            yield from ((*family, *owner) for owner in (*owners, ()))


def possible_routes(variable: VariableInfo, servers: int) -> tuple[str, ...]:
    """Returns the routes that the variable can take, in the order of `all_routes`. If its vocabulary grows, these are
    the routes on which it can grow, if there are any."""
    taken = [route for route in all_routes() if route.takes(variable, servers=servers)]
    growing = [route for route in taken if route.grows]
    return tuple(route.name for route in (growing if variable.grows and growing else taken))


def not_carried(variables: Sequence[VariableInfo], routes: Mapping[str, str]) -> VariableInfo | None:
    """Returns the first variable that a collective would need to send but cannot send, or None if there is none.

    If any route uses collectives, the collectives send at least the initial value of each variable that is not on
    servers.
    """
    if not any(route_named(route).is_collective for route in routes.values()):
        return None
    kept = (variable for variable in variables if not route_named(routes[variable.name]).on_servers)
    return next((variable for variable in kept if variable.dtype not in backend().sent_dtypes), None)


def _routes(
    variables: Sequence[VariableInfo],
    model: CostModel,
    family: tuple[str, ...],
    cost_of: Callable[[RouteCost], float],
) -> dict[str, str] | None:
    """Returns the cheapest routes within a family.

    Returns None if a variable cannot take any route in the family. Also returns None if the costs of a variable are
    unknown, a route could send the variable's rows to owners, and the family contains no such route.
    """
    chosen: dict[str, str] = {}
    for variable in variables:
        route = _cheapest_route(variable, model, family, cost_of)
        if route is None:
            return None
        chosen[variable.name] = route
    return chosen


def _cheapest_route(
    variable: VariableInfo, model: CostModel, family: tuple[str, ...], cost_of: Callable[[RouteCost], float]
) -> str | None:
    """Returns the variable's cheapest route within a family, or None for the reasons that `_routes` gives."""
    possible = _possible_in_scope(variable, model.cluster.servers)
    routes = [route for route in possible if variable.grows or route in family or route_named(route).sends_nothing]
    costs = _known_costs(variable, model, routes)
    if costs:
        return min(costs, key=lambda route: cost_of(costs[route]))
    # The number of rows is unknown, so rows are sent to their owner.
    if _with_owners(possible):
        routes = _with_owners(routes)
    return routes[-1] if routes else None


def _possible_in_scope(variable: VariableInfo, servers: int) -> Sequence[str]:
    """Returns the routes that the variable can take. If its device scope names a server, these are the routes with
    servers, if there are any."""
    possible = possible_routes(variable, servers)
    if variable.server is None:
        return possible
    on_servers = [route for route in _with_owners(possible) if route_named(route).on_servers]
    return on_servers or possible


def _with_owners(routes: Sequence[str]) -> list[str]:
    return [route for route in routes if route_named(route).has_owners]


def _known_costs(variable: VariableInfo, model: CostModel, routes: Sequence[str]) -> dict[str, RouteCost]:
    """Returns the variable's cost with each route. Routes whose cost is unknown are omitted."""
    costs = {route: model.cost(variable, route) for route in routes}
    return {route: cost for route, cost in costs.items() if cost is not None}


def _dense_where_alike(
    variables: Sequence[VariableInfo], model: CostModel, routes: Mapping[str, str]
) -> Mapping[str, str]:
    """Returns the routes, with allreduce for variables whose rows are nearly all touched.

    A route is changed only if the change lengthens exchanges and updates by at most a small fraction of a step.
    """
    total_secs = _total(variables, model, routes)
    limit_secs = total_secs + ALIKE * (model.step_secs(variables, routes) or total_secs)
    for variable in variables:
        is_free = variable.server is None and not variable.grows
        if is_free and _nearly_all_touched(variable, model):
            dense = {**routes, variable.name: route_of_kept(GradientKind.DENSE).name}
            if not_carried(variables, dense) is None and _total(variables, model, dense) <= limit_secs:
                routes = dense
    return routes


def _nearly_all_touched(variable: VariableInfo, model: CostModel) -> bool:
    touched = model.touched(variable)
    if touched is None or touched.is_bound or variable.gradient is not GradientKind.SPARSE:
        return False
    return touched.distinct >= NEARLY_ALL * variable.shape[0]


def _total(variables: Sequence[VariableInfo], model: CostModel, routes: Mapping[str, str]) -> float:
    """Returns the seconds that exchanges and updates add to a step if they do not overlap with its computation.

    Exchanges during another step do overlap with that step's computation. They add only the time by which they exceed
    that computation.
    """
    once = model.once(variables, routes)
    costs = [cost for variable in variables if (cost := model.cost(variable, routes[variable.name])) is not None]
    own_secs = once.before_secs + once.after_secs + sum(cost.own_secs for cost in costs)
    aside_secs = once.aside_secs + sum(cost.aside_secs for cost in costs)
    return own_secs + max(0.0, aside_secs - (model.compute_secs() or 0.0))


def _told(variable: VariableInfo, model: CostModel, route: str) -> str:
    """Returns the reason for a route. A vocabulary that grows has no choice."""
    return route_named(route).reason(variable) if variable.grows else _reason(variable, model, route)


def _reason(variable: VariableInfo, model: CostModel, route: str) -> str:
    if route_named(route).sends_nothing:
        return route_named(route).reason(variable)
    possible = possible_routes(variable, model.cluster.servers)
    secs = {other: cost.secs for other, cost in _known_costs(variable, model, possible).items()}
    if route not in secs:
        return "sparse, with an unknown number of rows touched in a step: rows are sent to their owner"
    told = ", ".join(f"{other} {1000 * secs[other]:.3g} ms" for other in secs if other != route)
    others = f"; {told}" if told else ""
    rows = _told_of_rows(variable, model)
    is_dense = route_named(route).kept_gradient is GradientKind.DENSE
    is_slower = secs[route] > min(secs.values())
    if is_dense and is_slower and _nearly_all_touched(variable, model):
        rows += ", and each rank touches nearly all of them, so the dense route is hardly slower"
    return f"{1000 * secs[route]:.3g} ms a step with {route}{others}{rows}"


def _told_of_rows(variable: VariableInfo, model: CostModel) -> str:
    """Returns the part of a reason that states the fraction of touched rows, if it is known."""
    touched = model.touched(variable)
    if variable.gradient is not GradientKind.SPARSE or touched is None:
        return ""
    bound = "at most " if touched.is_bound else ""
    return f"; a step touches {bound}{100 * touched.share_of(variable):.3g} % of the rows"
