"""Chooses routes by the preset of `comm`, which has a route for dense gradients and one for sparse gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.config.schema import RoutesConfig
from parallax_runner.errors import PlanError, Setting
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.choose import Choice
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.routes.local.planning import ROUTE as LOCAL
from parallax_runner.routes.registry import all_routes, route_named, route_of_kept
from parallax_runner.routes.route import Route


def choose_by_preset(variables: Sequence[VariableInfo], request: PlanRequest) -> Choice:
    """Returns the routes that the preset chooses for the variables, and the reasons for these routes."""
    preset = request.routes
    if preset is None:
        raise PlanError("set comm.routes, which chooses the routes of dense and sparse gradients").about(
            Setting.of("comm", request.comm)
        )
    routes = {variable.name: _route(variable, request.comm, preset, request.servers) for variable in variables}
    reasons = {variable.name: _reason(variable, routes[variable.name], request.options) for variable in variables}
    return Choice(routes, reasons)


def is_mixed(preset: RoutesConfig | None) -> bool:
    """Returns whether a preset uses collectives for dense gradients, and owners of rows for sparse gradients."""
    return preset is not None and route_named(preset.dense).is_collective and route_named(preset.sparse).has_owners


def notes_on_mixed(
    comm: str, preset: RoutesConfig | None, variables: Sequence[VariableInfo], routes: Mapping[str, str]
) -> Iterator[str]:
    """Yields a note if a mixed preset does not use all of its routes for these variables."""
    if preset is None or not is_mixed(preset):
        return
    kinds, used = {variable.gradient for variable in variables}, set(routes.values())
    if route_named(preset.sparse).on_servers:
        yield from _notes_on_servers(comm, preset, kinds, used)
    elif GradientKind.SPARSE not in kinds:
        yield f"no sparse variable: {comm} is the same as mpi"


def _notes_on_servers(comm: str, preset: RoutesConfig, kinds: set[GradientKind], used: set[str]) -> Iterator[str]:
    """Yields a note if a mixed preset with servers has no variable for its servers, or none for its collectives."""
    is_needed = preset.sparse in used
    if GradientKind.SPARSE not in kinds and not is_needed:
        yield f"no sparse variable: {comm} is the same as mpi, and no server is started"
    if GradientKind.SPARSE in kinds and not is_needed and any(route_named(route).grows for route in used):
        yield "no sparse variable is on a server, because vocabularies grow on the ranks: no server is started"
    if GradientKind.DENSE not in kinds and used <= {preset.sparse, LOCAL.name} and is_needed:
        yield f"no dense variable: {comm} is the same as {preset.sparse}, and no collective runs"


def _route(variable: VariableInfo, comm: str, preset: RoutesConfig, servers: int) -> str:
    """Returns the preset's route for a variable, or a replacement.

    If the preset is mixed, a vocabulary that grows is owned by the ranks. If the preset has servers, another variable
    whose device scope names a server is placed on servers. If the preset has collectives, a variable that cannot be
    moved stays with the ranks.
    """
    wanted = {GradientKind.DENSE: preset.dense, GradientKind.SPARSE: preset.sparse}.get(variable.gradient)
    if wanted is None:
        return LOCAL.name
    if route_named(wanted).sends_nothing:
        return wanted
    growing = _route_that_grows(variable, preset, servers)
    if growing is not None:
        return growing.name
    if _is_placed_by_scope(variable, preset):
        return preset.sparse
    if route_named(wanted).takes(variable, servers=servers):
        return wanted
    if route_named(preset.dense).is_collective:
        return route_of_kept(variable.gradient).name
    raise PlanError(
        f"variable «{variable.name}» cannot be on a server, because «{variable.immovable_op}» "
        f"{variable.immovable_because or 'uses it directly'}."
    ).about(Setting.of("comm", comm), remedy="Otherwise, choose comm=hybrid or comm=mpi")


def _is_placed_by_scope(variable: VariableInfo, preset: RoutesConfig) -> bool:
    """Returns whether the device scope of a variable names a server, and the variable can be there."""
    return variable.server is not None and not variable.immovable_op and route_named(preset.sparse).on_servers


def _route_that_grows(variable: VariableInfo, preset: RoutesConfig, servers: int) -> Route | None:
    """Returns the route of a variable whose vocabulary grows, if the preset is mixed and there is such a route: that
    of sparse gradients or, if it keeps no maps, another one."""
    if not variable.grows or not is_mixed(preset):
        return None
    found = [route for route in all_routes() if route.grows and route.takes(variable, servers=servers)]
    of_sparse = [route for route in found if route.name == preset.sparse]
    return next(iter([*of_sparse, *found]), None)


def _reason(variable: VariableInfo, route: str, options: CommOptions) -> str:
    if variable.counts and not options.waits_for_all:
        return "counts the updates of all replicas, on server 0"
    return route_named(route).reason(variable)
