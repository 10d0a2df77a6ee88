"""Finds routes by name: the built-in routes, and the routes that other packages provide.

Another package adds a route through an entry point in the group `parallax_runner.routes`, for example `mine =
"my_package.planning"`. The entry point names a module whose `ROUTE` is a `Route`.
"""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points

from parallax_runner.analysis.variable_info import GradientKind
from parallax_runner.errors import PlanError
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.routes.route import Route

GROUP = "parallax_runner.routes"
# Tables have their columns in this order.
BUILT_IN = {
    "local": "parallax_runner.planning.routes.local",
    "allreduce": "parallax_runner.planning.routes.allreduce",
    "allgather": "parallax_runner.planning.routes.allgather",
    "ps": "parallax_runner.planning.routes.ps",
    "alltoall": "parallax_runner.planning.routes.alltoall",
}


def route_named(name: str) -> Route:
    """Returns the route with this name. Raises PlanError if there is no such route, or if its module has no valid
    route."""
    where = _modules().get(name)
    if where is None:
        raise PlanError(f"unknown route «{name}»: expected one of {', '.join(_modules())}")
    return _loaded(name, where)


def route_of_kept(gradient: GradientKind) -> Route:
    """Returns the route of a gradient of this kind if every rank keeps the whole variable."""
    return next(route for route in all_routes() if route.kept_gradient is gradient)


def route_names() -> tuple[str, ...]:
    """Returns the names of all known routes, whether or not they are loaded."""
    return tuple(_modules())


def all_routes() -> tuple[Route, ...]:
    """Returns all known routes."""
    return tuple(map(route_named, _modules()))


def routes_of(plan: Plan) -> tuple[Route, ...]:
    """Returns the routes that variables of the plan take, each route once."""
    return tuple(map(route_named, dict.fromkeys(variable.route for variable in plan.variables)))


def uses_collectives(plan: Plan) -> bool:
    """Returns whether ranks exchange data among themselves."""
    return any(route.is_collective for route in routes_of(plan))


def lengths_vary(plan: Plan) -> bool:
    """Returns whether Horovod exchanges tensors whose length changes from step to step."""
    return any(route.lengths_vary(plan) for route in routes_of(plan))


def may_fuse(plan: Plan) -> bool:
    """Returns whether Horovod is faster if it fuses the tensors of a route in the plan."""
    return any(route.may_fuse(plan) for route in routes_of(plan))


@functools.cache
def _modules() -> dict[str, str]:
    """Returns a dict from route names to modules. Another package cannot replace a built-in route."""
    brought = {point.name: point.value for point in entry_points(group=GROUP)}
    return {**BUILT_IN, **{name: where for name, where in brought.items() if name not in BUILT_IN}}


@functools.cache
def _loaded(name: str, where: str) -> Route:
    try:
        route = importlib.import_module(where).ROUTE
    except (ImportError, AttributeError) as error:
        raise PlanError(f"route «{name}»: {where} cannot be imported, or has no ROUTE: {error}") from error
    if not isinstance(route, Route) or route.name != name:
        raise PlanError(f"route «{name}»: {where}.ROUTE is {route!r}, expected a Route with this name")
    return route
