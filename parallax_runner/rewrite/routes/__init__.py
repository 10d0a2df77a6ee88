"""One package a route: its passes and placement. Its attribute REWRITING is what the rest of rewriting knows of it."""

from __future__ import annotations

import importlib

from parallax_runner.errors import PlanError
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.routes.registry import all_routes, routes_of
from parallax_runner.planning.routes.route import Route
from parallax_runner.rewrite.route import RouteRewriting


def rewritings() -> list[RouteRewriting]:
    """The rewriting half of every route that has one; passes of one phase run in this order."""
    return [rewriting_of(route) for route in all_routes() if route.rewriting]


def rewriting_of(route: Route) -> RouteRewriting:
    """The rewriting half of a route. Raises PlanError where the module that the route names has none."""
    try:
        rewriting = importlib.import_module(route.rewriting).REWRITING
    except (ImportError, AttributeError) as error:
        reason = f"{route.rewriting} cannot be imported, or has no REWRITING: {error}"
        raise PlanError(f"route «{route.name}»: {reason}") from error
    if not isinstance(rewriting, RouteRewriting):
        raise PlanError(f"route «{route.name}»: {route.rewriting}.REWRITING is {rewriting!r}, no RouteRewriting")
    return rewriting


def shared_variables(plan: Plan) -> set[str]:
    """The variables, and their slots, that are on servers: one copy for all ranks."""
    shared = {route.name for route in routes_of(plan) if route.on_servers}
    return {name for one in plan.variables if one.route in shared for name in (one.name, *one.slots)}


def needs_all_ranks(plan: Plan) -> bool:
    """Whether a read of all variables is a collective."""
    return any(rewriting_of(route).needs_all_ranks for route in routes_of(plan) if route.rewriting)
