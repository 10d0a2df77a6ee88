"""The routes that a choice of `comm` assigns to dense and to sparse gradients. A choice's file contains these routes in
`comm.routes`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from parallax_runner.analysis.variable_info import GradientKind
from parallax_runner.config.location import conf_dir
from parallax_runner.config.schema import CommConfig
from parallax_runner.errors import PlanError
from parallax_runner.planning.routes.registry import route_named

# The choices of `comm` that come with this project.
CHOICES = ("local", "mpi", "ps", "hybrid", "sharded", "auto")


@dataclass(frozen=True)
class Preset:
    """A route for each kind of gradient, by name."""

    dense: str
    sparse: str

    def of(self, gradient: GradientKind) -> str | None:
        """Returns the route for this kind of gradient, or None for a variable without a gradient."""
        return {GradientKind.DENSE: self.dense, GradientKind.SPARSE: self.sparse}.get(gradient)


def is_all_on_servers(preset: Preset | None) -> bool:
    """Returns whether a preset places variables with dense and with sparse gradients on servers."""
    return preset is not None and all(route_named(name).on_servers for name in (preset.dense, preset.sparse))


def preset_of(comm: CommConfig) -> Preset | None:
    """Returns the preset of the configuration's group `comm`, or None if the cost model chooses routes."""
    return None if comm.routes is None else Preset(dense=comm.routes.dense, sparse=comm.routes.sparse)


@functools.cache
def preset_named(comm: str) -> Preset:
    """Returns the preset of one of this project's own choices. Raises PlanError if a choice has no preset, such as
    comm=auto."""
    path = conf_dir() / "comm" / f"{comm}.yaml"
    routes: Mapping[str, str] | None = None
    if path.is_file():
        routes = yaml.safe_load(path.read_text(encoding="utf-8")).get("routes")
    if routes is None:
        raise PlanError(f"comm={comm}: set comm.routes, which chooses the routes of dense and sparse gradients")
    return Preset(dense=routes["dense"], sparse=routes["sparse"])
