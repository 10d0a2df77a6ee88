"""What a choice of `comm` means for the processes of a run. Rules check these properties, not the name of the choice or
of a route."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from parallax_runner.config.location import conf_dir
from parallax_runner.config.schema import CommConfig, RoutesConfig
from parallax_runner.routes.traits import RouteTraits, route_names, traits_of_route


@dataclass(frozen=True)
class CommMode:
    """The properties of a choice. They follow from its routes for dense and sparse gradients."""

    is_chosen_by_cost: bool = False  # the cost model chooses a route for each variable, so any route is possible
    is_one_process: bool = False  # one process trains, and sends nothing
    has_servers: bool = False  # variables can be on servers
    # All variables with gradients are on servers. No collective makes a rank wait for the others, so training can be
    # asynchronous, and a worker can have several replicas.
    is_all_on_servers: bool = False
    has_collectives: bool = False  # ranks can exchange data among themselves
    gathers: bool = False  # ranks can gather sparse gradients
    needs_all_ranks: bool = False  # a read of a variable can be a collective


def mode_of(comm: CommConfig) -> CommMode:
    """Returns the properties of the configured choice. `check_routes` rejects routes that contradict `comm.name`."""
    return mode_with(choices().get(comm.name, comm.routes))


def mode_with(routes: RoutesConfig | None) -> CommMode:
    """Returns the properties of a choice with these routes. A route that `check_routes` rejects adds no properties."""
    if routes is None:
        return CommMode(is_chosen_by_cost=True, has_servers=True, has_collectives=True)
    both = [_traits(name) for name in (routes.dense, routes.sparse)]
    has_collectives = any(route.is_collective for route in both)
    return CommMode(
        is_one_process=all(route.sends_nothing for route in both),
        has_servers=any(route.on_servers for route in both),
        is_all_on_servers=all(route.on_servers for route in both),
        has_collectives=has_collectives,
        gathers=has_collectives and any(route.leads_to_gathering for route in both),
        needs_all_ranks=any(route.needs_all_ranks for route in both),
    )


def _traits(name: str) -> RouteTraits:
    return traits_of_route(name) if name in route_names() else RouteTraits()


@functools.cache
def choices() -> Mapping[str, RoutesConfig | None]:
    """Returns the routes of this project's own choices of `comm`, or None if the cost model chooses them."""
    paths = sorted((conf_dir() / "comm").glob("*.yaml"))
    routes = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")).get("routes") for path in paths}
    return {name: None if found is None else RoutesConfig(**found) for name, found in routes.items()}


def name_by_cost() -> str:
    """Returns the name of the choice for which the cost model chooses the routes."""
    return next(name for name, routes in choices().items() if routes is None)
