"""Which routes a choice of `comm` takes for dense and for sparse gradients: `comm.routes` of its file."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from parallax_runner.analysis.variable_info import GradientKind
from parallax_runner.config.location import conf_dir
from parallax_runner.config.schema import CommConfig
from parallax_runner.errors import PlanError

# The choices that come with this project.
CHOICES = ("local", "mpi", "ps", "hybrid", "sharded", "auto")


@dataclass(frozen=True)
class Preset:
    """A route for each kind of gradient, by name."""

    dense: str
    sparse: str

    def of(self, gradient: GradientKind) -> str | None:
        """The route of such a gradient; None without one."""
        return {GradientKind.DENSE: self.dense, GradientKind.SPARSE: self.sparse}.get(gradient)


def preset_of(comm: CommConfig) -> Preset | None:
    """Of the group `comm` of a configuration; None where the cost model chooses routes."""
    return None if comm.routes is None else Preset(dense=comm.routes.dense, sparse=comm.routes.sparse)


@functools.cache
def preset_named(comm: str) -> Preset:
    """Of one of the choices that come with this project. Raises PlanError where it has none, as comm=auto."""
    path = conf_dir() / "comm" / f"{comm}.yaml"
    routes: Mapping[str, str] | None = None
    if path.is_file():
        routes = yaml.safe_load(path.read_text(encoding="utf-8")).get("routes")
    if routes is None:
        raise PlanError(f"comm={comm}: no comm.routes says which route dense and sparse gradients take")
    return Preset(dense=routes["dense"], sparse=routes["sparse"])
