"""The rewriting half of a route: its passes, and the state that only they share."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from parallax_runner.errors import PlanError
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.rewrite_pass import RewritePass
from parallax_runner.routes.registry import all_routes, routes_of
from parallax_runner.routes.route import Route


@dataclass(frozen=True)
class RouteRewriting:
    """The passes of a route, grouped by when they run.

    rewrite/passes.py defines the order of all passes. `exchange` passes replace gradients with the gradients of all
    ranks. Until the `place` passes run, each rank holds whole variables. `place` passes distribute variables over
    servers or ranks, redirect reads, and set `Rewrite.placements`. A placement creates the pieces that checkpoints read
    and restore. `aggregate` passes bring the gradients of placed variables to their rows, and set `Rewrite.aggregates`.
    Then one traversal of the update region makes the updates of all variables with such aggregates run where the rows
    are, and sets `Rewrite.update`. A route whose steps do not wait for all ranks updates its variables itself, and sets
    no aggregates. `update` passes complete the update. After these passes, no op of the step may use the original
    handle of a placed variable. `after` passes run when the graph of the step is complete.

    `state` is a dataclass, all of whose fields have defaults. A replica keeps one instance of it
    (`Rewrite.of_route(state)`) for what the passes of this route hand to each other. A pass declares a field as
    "State.field".
    """

    exchange: tuple[RewritePass, ...] = ()
    place: tuple[RewritePass, ...] = ()
    aggregate: tuple[RewritePass, ...] = ()
    update: tuple[RewritePass, ...] = ()
    after: tuple[RewritePass, ...] = ()
    state: type | None = None

    @property
    def passes(self) -> tuple[RewritePass, ...]:
        """All passes of the route."""
        return (*self.exchange, *self.place, *self.aggregate, *self.update, *self.after)


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
