"""Finds routes by name and by plan, and queries their properties."""

from __future__ import annotations

from typing import cast

from parallax_runner.analysis.variable_info import GradientKind
from parallax_runner.plan.plan import Plan
from parallax_runner.routes.route import Route
from parallax_runner.routes.traits import route_names, traits_of_route


def route_named(name: str) -> Route:
    """Returns the route with this name. Raises PlanError if there is no such route, or if its module has no valid
    route."""
    return cast(Route, traits_of_route(name))


def route_of_kept(gradient: GradientKind) -> Route:
    """Returns the route for a gradient of this kind if every rank keeps the whole variable."""
    return next(route for route in all_routes() if route.kept_gradient is gradient)


def all_routes() -> tuple[Route, ...]:
    """Returns all known routes."""
    return tuple(map(route_named, route_names()))


def routes_of(plan: Plan) -> tuple[Route, ...]:
    """Returns the routes that variables of the plan take, each route once."""
    return tuple(map(route_named, dict.fromkeys(variable.route for variable in plan.variables)))


def uses_collectives(plan: Plan) -> bool:
    """Returns whether ranks exchange data among themselves under this plan."""
    return any(route.is_collective for route in routes_of(plan))


def lengths_vary(plan: Plan) -> bool:
    """Returns whether ranks exchange tensors whose lengths change from step to step."""
    return any(route.lengths_vary(plan) for route in routes_of(plan))


def may_fuse(plan: Plan) -> bool:
    """Returns whether an exchange is faster if the backend fuses the tensors of a route in the plan."""
    return any(route.may_fuse(plan) for route in routes_of(plan))
