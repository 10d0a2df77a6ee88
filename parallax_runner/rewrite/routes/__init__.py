"""One package for each route, with its passes and placement. Other rewriting code uses only a package's REWRITING
attribute."""

from __future__ import annotations

import importlib

from parallax_runner.errors import PlanError
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.routes.registry import all_routes, routes_of
from parallax_runner.planning.routes.route import Route
from parallax_runner.rewrite.route import RouteRewriting


def rewritings() -> list[RouteRewriting]:
    """Returns the rewriting parts of all routes that have one. Passes of the same phase run in the order of this
    list."""
    return [rewriting_of(route) for route in all_routes() if route.rewriting]


def rewriting_of(route: Route) -> RouteRewriting:
    """Returns the rewriting part of a route. Raises PlanError if the route's module cannot be imported or has no
    rewriting part."""
    try:
        rewriting = importlib.import_module(route.rewriting).REWRITING
    except (ImportError, AttributeError) as error:
        reason = f"{route.rewriting} cannot be imported or has no REWRITING: {error}"
        raise PlanError(f"route «{route.name}»: {reason}") from error
    if not isinstance(rewriting, RouteRewriting):
        raise PlanError(
            f"route «{route.name}»: {route.rewriting}.REWRITING is {rewriting!r}, expected a RouteRewriting"
        )
    return rewriting


def shared_variables(plan: Plan) -> set[str]:
    """Returns the names of the variables on servers, and of their slots. All ranks share one copy of each."""
    shared = {route.name for route in routes_of(plan) if route.on_servers}
    return {name for one in plan.variables if one.route in shared for name in (one.name, *one.slots)}


def needs_all_ranks(plan: Plan) -> bool:
    """Returns whether a read of all variables is a collective."""
    return any(route.needs_all_ranks for route in routes_of(plan))
