"""Checks the routes in a configuration: their names, and the servers that they need."""

from __future__ import annotations

from parallax_runner.config.explain import nearest, refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.planning.presets import CHOICES, preset_named, preset_of
from parallax_runner.planning.routes.registry import route_named, route_names

AUTO = "auto"


def check_routes(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if `comm` names an unknown route, or needs servers that the configuration does not have."""
    _check_names(config, origins)
    has_servers = uses_servers(config)
    if config.comm.name != AUTO and has_servers and config.cluster.servers < 1:
        raise refusal("cluster.servers", origins, f"comm={config.comm.name} needs at least 1 server", value=0)
    if config.action == "search" and not has_servers:
        needed = f"comm={config.comm.name} has no servers, so no variable can be split; use comm=hybrid or comm=ps"
        raise refusal("action", origins, needed, value="search")


def uses_servers(config: RunConfig) -> bool:
    """Returns whether variables in this configuration can be on servers."""
    preset = preset_of(config.comm)
    return preset is None or any(route_named(name).on_servers for name in (preset.dense, preset.sparse))


def _check_names(config: RunConfig, origins: Origins) -> None:
    comm, preset = config.comm, preset_of(config.comm)
    if preset is None:
        if comm.name != AUTO:
            hint = nearest(comm.name, CHOICES)
            expected = (
                f"expected the name of a choice of comm, one of {', '.join(CHOICES)}, or a new name with comm.routes"
            )
            raise refusal("comm.name", origins, expected, hint=None if hint is None else f"comm={hint}")
        return
    for kind, name in (("dense", preset.dense), ("sparse", preset.sparse)):
        if name not in route_names():
            hint = nearest(name, route_names())
            expected = f"no such route; expected one of {', '.join(route_names())}"
            suggestion = None if hint is None else f"comm.routes.{kind}={hint}"
            raise refusal(f"comm.routes.{kind}", origins, expected, hint=suggestion, value=name)
    if comm.name == AUTO:
        raise refusal("comm.routes", origins, "comm=auto chooses a route for each variable; omit comm.routes")
    if comm.name in CHOICES and preset_named(comm.name) != preset:
        others = f"comm.routes has dense: {preset.dense}, sparse: {preset.sparse}"
        expected = f"{others}, which differ from this choice's routes; choose comm={comm.name}, or another name"
        raise refusal("comm.name", origins, expected)
