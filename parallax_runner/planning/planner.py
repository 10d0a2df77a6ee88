"""Creates a plan: the route of each variable (from the preset of `comm` or from a choice), shards, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from parallax_runner.analysis.variable_info import GradientKind, RowsWritten, VariableInfo
from parallax_runner.collectives.chosen import backend
from parallax_runner.config.schema import RoutesConfig
from parallax_runner.errors import PlanError, Setting
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.plan.format_bytes import format_bytes
from parallax_runner.plan.plan import Plan, VariablePlan, WholeTable
from parallax_runner.planning.choose import ADDED_UP, not_carried
from parallax_runner.planning.cost.sent_bytes import predict_sent_bytes
from parallax_runner.planning.cut import cut_variables, refuse_more_pieces_than_rows
from parallax_runner.planning.lookahead import in_effect, lookahead_notes
from parallax_runner.planning.placement import held_unevenly, place
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.preset import choose_by_preset, is_mixed, notes_on_mixed
from parallax_runner.routes.allgather.planning import ROUTE as ALLGATHER
from parallax_runner.routes.registry import route_named


def make_plan(request: PlanRequest) -> Plan:
    """Creates the requested plan.

    Raises PlanError if a variable would have more shards than rows (never with Cut.BY_BYTES), or if a route is unknown.
    """
    comm, options, preset = request.comm, request.options, request.routes
    variables = cut_variables(request.variables, request.partitions, request.cut)
    choice = request.choice or choose_by_preset(variables, request)
    routes = choice.routes
    _refuse_what_ranks_cannot_send(variables, routes, comm)
    used = in_effect(request, routes)
    served = [variable for variable in variables if route_named(routes[variable.name]).on_servers]
    refuse_more_pieces_than_rows(served)
    if options.sync:
        _refuse_what_servers_cannot_add_up(served, comm)
    shards = place(served, request.servers, request.measured, options.ps)
    planned = tuple(
        VariablePlan(
            name=variable.name,
            shape=variable.shape,
            dtype=variable.dtype,
            size_bytes=variable.size_bytes,
            gradient=variable.gradient.value,
            route=routes[variable.name],
            shards=shards.get(variable.name, ()),
            slots=variable.slots,
            sent_bytes_per_step=predict_sent_bytes(variable, routes[variable.name], request.workers, used),
            reason=choice.reasons[variable.name],
            rows_written=variable.rows_written.value,
            whole_tables=_whole_tables(variable, routes[variable.name]),
            is_ahead=route_named(routes[variable.name]).is_ahead(variable, used),
        )
        for variable in variables
    )
    notes = [*choice.notes, *_notes(variables, request, preset, routes)]
    notes += _notes_on_repeated_ids(variables)
    notes += _notes_on_slow_exchanges(request, routes)
    notes += _notes_on_options(request, routes, served)
    notes += lookahead_notes(variables, routes, request)
    notes += _notes_on_whole_tables(planned, served, options)
    notes += _notes_on_initial_values(variables, routes)
    if (uneven := held_unevenly(served, shards, request.servers)) is not None:
        notes.append(uneven)
    return Plan(
        comm=comm,
        workers=request.workers,
        servers=request.servers if shards else 0,
        fingerprint=request.fingerprint,
        variables=planned,
        notes=tuple(notes),
        replicas_per_worker=request.replicas_per_worker,
        options=options,
        differ_unmerged=tuple(variable.name for variable in variables if variable.nonlinear_op),
        counters=_counters(variables, options),
    )


def _whole_tables(variable: VariableInfo, route: str) -> tuple[WholeTable, ...]:
    """Returns the whole-table transfers of a variable. Returns no transfers if the variable's rows have no owners."""
    if not route_named(route).has_owners:
        return ()
    return tuple(WholeTable(table.op, table.size_bytes) for table in variable.whole_tables)


def _notes_on_whole_tables(
    planned: Sequence[VariablePlan], served: Sequence[VariableInfo], options: CommOptions
) -> Iterator[str]:
    for variable in planned:
        for table in variable.whole_tables:
            yield f"all rows of «{variable.name}» are sent for op «{table.op}»: {table.size_bytes} bytes per step"
    for info in served if not options.ps.boundary_among_servers else ():
        if info.gradient is GradientKind.SPARSE and info.rows_written is RowsWritten.ALL:
            yield (
                f"comm.ps.boundary_among_servers=false: all rows of «{info.name}» and its slots are sent to a worker, "
                "because the variable's update writes all rows"
            )


def _notes_on_initial_values(variables: Sequence[VariableInfo], routes: Mapping[str, str]) -> Iterator[str]:
    """Yields a note on each initial value that needs more memory at the start than its rows need afterwards."""
    for variable in variables:
        route = route_named(routes[variable.name])
        if not route.has_owners:
            continue
        where = "worker 0" if route.on_servers else "each worker"
        for value in variable.whole_initial_values:
            yield (
                f"at the start, {where} makes the whole initial value of «{value.variable}» "
                f"({format_bytes(value.size_bytes)}), because {value.because} (docs/large-tables.md)"
            )


def _refuse_what_ranks_cannot_send(variables: Sequence[VariableInfo], routes: Mapping[str, str], comm: str) -> None:
    if (variable := not_carried(variables, routes)) is not None:
        other = "local" if _trained_as_none_can_add(variable) else "ps"
        raise PlanError(
            f"variable «{variable.name}» has dtype {variable.dtype}, which {backend().title} cannot send between ranks"
        ).about(Setting.of("comm", comm), remedy=f"choose comm={other}, or another dtype")


def _refuse_what_servers_cannot_add_up(served: Sequence[VariableInfo], comm: str) -> None:
    if (variable := next(filter(_trained_as_none_can_add, served), None)) is not None:
        raise PlanError(
            f"variable «{variable.name}» has dtype {variable.dtype}, for which TensorFlow's "
            "servers cannot sum the gradients of several workers"
        ).about(Setting.of("comm", comm), remedy="choose comm=local, or another dtype")


def _trained_as_none_can_add(variable: VariableInfo) -> bool:
    return variable.gradient is not GradientKind.NONE and variable.dtype not in ADDED_UP


def _counters(variables: Sequence[VariableInfo], options: CommOptions) -> tuple[str, ...]:
    """Returns the names of the variables that count the updates of all replicas on a server."""
    if options.waits_for_all:
        return ()
    about, remedy = Setting("comm.sync", "false"), "comm.sync=true"
    if options.sync:
        about, remedy = Setting("comm.ps.backup_workers", None), "comm.ps.backup_workers=0"
    counters = [variable for variable in variables if variable.counts]
    for variable in counters:
        if variable.immovable_op is not None:
            raise PlanError(
                f"variable «{variable.name}» counts the updates of all replicas on a server, but "
                f"«{variable.immovable_op}» uses this variable directly (in a branch, a loop or a function), or writes "
                "it before the gradients are computed"
            ).about(about, remedy=f"choose {remedy}")
    return tuple(variable.name for variable in counters)


def _notes(
    variables: Sequence[VariableInfo], request: PlanRequest, preset: RoutesConfig | None, routes: Mapping[str, str]
) -> list[str]:
    on_servers = {name for name, route in routes.items() if route_named(route).on_servers}
    splits = any(v.gradient is GradientKind.SPARSE and v.name in on_servers for v in variables)
    notes = list(notes_on_mixed(request.comm, preset, variables, routes))
    if request.partitions > 1 and not splits:
        notes.append(f"partition.num={request.partitions} has no effect: no sparse variable is on a server")
    if is_mixed(preset):
        notes += _notes_on_immovable(variables)
    notes += _notes_on_device_scopes(variables, routes)
    return notes


def _notes_on_immovable(variables: Sequence[VariableInfo]) -> Iterator[str]:
    for variable in variables:
        if variable.immovable_op and variable.gradient is GradientKind.SPARSE:
            yield (
                f"«{variable.name}» stays whole on every rank, because «{variable.immovable_op}» "
                f"{variable.immovable_because or 'uses it directly'}"
            )


def _notes_on_device_scopes(variables: Sequence[VariableInfo], routes: Mapping[str, str]) -> Iterator[str]:
    for variable in variables:
        route = routes[variable.name]
        if variable.server is not None and not route_named(route).on_servers:
            yield (
                f"the device scope of «{variable.name}» names /job:ps/task:{variable.server}, but the variable stays "
                f"with the ranks: {_kept(route)}"
            )


def _notes_on_repeated_ids(variables: Sequence[VariableInfo]) -> Iterator[str]:
    """Yields a note on updates whose results can differ from the results of stock TensorFlow and Keras, because the
    rows of repeated ids are merged before these updates."""
    differ = [variable for variable in variables if variable.nonlinear_op]
    if not differ:
        return
    dense = [variable for variable in variables if variable.gradient is GradientKind.DENSE]
    yield (
        f"the update of {_listed(differ, dense)} is not linear in the sparse gradient (first nonlinear op: "
        f"«{differ[0].nonlinear_op}»): in every mode, rows with the same id are merged first; stock TensorFlow and "
        "Keras do not merge them, so their results differ if a batch repeats an id (docs/repeated-ids.md)"
    )


def _listed(differ: Sequence[VariableInfo], dense: Sequence[VariableInfo]) -> str:
    """Returns the names of the variables in `differ`. If all variables in `dense` differ, they are not named one by
    one."""
    is_every = bool(dense) and all(variable.nonlinear_op for variable in dense)
    named = [variable for variable in differ if variable not in dense] if is_every else differ
    parts = [", ".join(f"«{variable.name}»" for variable in named)] if named else []
    if is_every:
        parts.append("every variable with a dense gradient")
    return " and ".join(parts)


def _notes_on_slow_exchanges(request: PlanRequest, routes: Mapping[str, str]) -> Iterator[str]:
    """Yields a note if collectives between several workers are slow, because mpirun did not start the workers."""
    has_collectives = any(route_named(route).is_collective for route in routes.values())
    if not has_collectives or request.workers == 1 or not request.without_mpirun:
        return
    note = backend().note_without_mpirun
    if note is not None:
        yield note


def _notes_on_options(request: PlanRequest, routes: Mapping[str, str], served: Sequence[VariableInfo]) -> Iterator[str]:
    """Yields a note about each option that has no effect in this plan."""
    options = request.options
    if options.use_allgatherv and ALLGATHER.name not in routes.values():
        yield "comm.mpi.use_allgatherv=true has no effect: no sparse gradient is gathered among the ranks"
    serves_dense = any(one.gradient is GradientKind.DENSE for one in served)
    if options.ps.replicate_variables and not serves_dense:
        yield "comm.ps.replicate_variables=true has no effect: no dense variable is on a server"
    if not options.ps.local_aggregation:
        if request.replicas_per_worker == 1:
            yield "comm.ps.local_aggregation=false has no effect: a worker has one replica"
        elif not options.sync:
            yield "comm.ps.local_aggregation=false has no effect: each replica pushes immediately"


def _kept(route: str) -> str:
    return "each rank owns some of the rows" if route_named(route).has_owners else "each rank keeps its own copy"
