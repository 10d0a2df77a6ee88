"""Finds routes by name: the built-in routes, and the routes that other packages provide.

Another package adds a route through an entry point in the group `parallax_runner.routes`, for example `mine =
"my_package.planning"`. The entry point names a module whose `ROUTE` is a `Route`.
"""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points
from typing import ClassVar

from parallax_runner.errors import PlanError

GROUP = "parallax_runner.routes"
# The columns of tables are in this order.
BUILT_IN = {
    "local": "parallax_runner.routes.local.planning",
    "allreduce": "parallax_runner.routes.allreduce.planning",
    "allgather": "parallax_runner.routes.allgather.planning",
    "ps": "parallax_runner.routes.ps.planning",
    "alltoall": "parallax_runner.routes.alltoall.planning",
}
BASE = "parallax_runner.routes.route.Route"  # as a dotted path, because this stage cannot import it


class RouteTraits:
    """The properties of a route that stages other than planning and the rewrite need. `Route` extends this class.

    Attributes:
        name: the name in plans, tables and `comm.routes`.
        is_collective: whether ranks exchange data among themselves, through the backend of the collectives.
        on_servers: whether values are on servers.
        needs_all_ranks: whether reading the route's variables is a collective operation. If it is, the ranks vote on
            whether to read, and a script cannot use the route.
        leads_to_gathering: whether ranks can gather sparse gradients, either of the route's variables or of variables
            that cannot take the route.
        sends_nothing: whether gradients stay in their process. If all gradients stay there, only one process trains.
    """

    name: ClassVar[str]
    is_collective: ClassVar[bool] = False
    on_servers: ClassVar[bool] = False
    needs_all_ranks: ClassVar[bool] = False
    leads_to_gathering: ClassVar[bool] = False
    sends_nothing: ClassVar[bool] = False


def traits_of_route(name: str) -> RouteTraits:
    """Returns the route with this name. Raises PlanError if there is no such route, or if its module has no valid
    route."""
    where = _modules().get(name)
    if where is None:
        raise PlanError(f"unknown route «{name}»: expected one of {', '.join(_modules())}")
    return _loaded(name, where)


def route_names() -> tuple[str, ...]:
    """Returns the names of all known routes, whether or not they are loaded."""
    return tuple(_modules())


@functools.cache
def _modules() -> dict[str, str]:
    """Returns a dict from route names to modules. Another package cannot replace a built-in route."""
    brought = {point.name: point.value for point in entry_points(group=GROUP)}
    return {**BUILT_IN, **{name: where for name, where in brought.items() if name not in BUILT_IN}}


@functools.cache
def _loaded(name: str, where: str) -> RouteTraits:
    try:
        route = importlib.import_module(where).ROUTE
    except (ImportError, AttributeError) as error:
        raise PlanError(f"route «{name}»: {where} cannot be imported, or has no ROUTE: {error}") from error
    bases = [f"{one.__module__}.{one.__qualname__}" for one in type(route).__mro__]
    if not isinstance(route, RouteTraits) or BASE not in bases or route.name != name:
        raise PlanError(f"route «{name}»: {where}.ROUTE is {route!r}, expected a Route with this name")
    return route
