"""Checks the routes in a configuration: their names, and the servers that they need."""

from __future__ import annotations

from parallax_runner.config.comm_mode import choices, mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.suggestions import nearest
from parallax_runner.routes.traits import route_names


def check_routes(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if `comm` names an unknown route, or needs servers that the configuration does not have."""
    _check_names(config, origins)
    mode = mode_of(config.comm)
    if not mode.is_chosen_by_cost and mode.has_servers and config.cluster.servers < 1:
        raise refusal("cluster.servers", origins, f"comm={config.comm.name} needs at least 1 server", value=0)


def _check_names(config: RunConfig, origins: Origins) -> None:
    comm, routes, own = config.comm, config.comm.routes, choices()
    is_chosen_by_cost = comm.name in own and own[comm.name] is None
    if routes is None:
        if not is_chosen_by_cost:
            hint = nearest(comm.name, tuple(own))
            expected = f"expected the name of a choice of comm, one of {', '.join(own)}, or a new name with comm.routes"
            raise refusal("comm.name", origins, expected, hint=None if hint is None else f"comm={hint}")
        return
    for kind, name in (("dense", routes.dense), ("sparse", routes.sparse)):
        if name not in route_names():
            hint = nearest(name, route_names())
            expected = f"no such route; expected one of {', '.join(route_names())}"
            suggestion = None if hint is None else f"comm.routes.{kind}={hint}"
            raise refusal(f"comm.routes.{kind}", origins, expected, hint=suggestion, value=name)
    if is_chosen_by_cost:
        needed = f"comm={comm.name} chooses a route for each variable; omit comm.routes"
        raise refusal("comm.routes", origins, needed)
    if own.get(comm.name, routes) != routes:
        chosen = f"comm.routes is dense: {routes.dense}, sparse: {routes.sparse}"
        expected = f"{chosen}, but comm={comm.name} has other routes; choose comm={comm.name}, or set another comm.name"
        raise refusal("comm.name", origins, expected)
