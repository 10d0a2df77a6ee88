"""Which gradients travel by which route."""

from __future__ import annotations

from parallax_runner.plan.plan import Route
from parallax_runner.rewrite.distributed_graph import Aggregate, Rewrite


def travelling_by(rewrite: Rewrite, route: Route) -> list[Aggregate]:
    """The gradients whose (first) variable the plan routes so, in a fixed order."""
    chosen = {variable.name for variable in rewrite.plan.by_route(route)}
    return [gradient for gradient in rewrite.gradients if gradient.variables[0] in chosen]
