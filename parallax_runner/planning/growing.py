"""Refuses plans with which a vocabulary would grow differently than on one device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parallax_runner.analysis.variable_info import GradientKind, GrowingTable, VariableInfo
from parallax_runner.errors import PlanError, Setting
from parallax_runner.plan.comm_options import Lookahead
from parallax_runner.plan.plan import Plan
from parallax_runner.routes.registry import all_routes, route_named


def check_growing(
    tables: Iterable[GrowingTable],
    plan: Plan,
    variables: Sequence[VariableInfo],
    *,
    script_runs_steps: bool = False,
) -> tuple[str, ...]:
    """Returns notes on where the maps of vocabularies that grow are. `variables` are those of the plan, and
    `script_runs_steps` has the same meaning as in `PlanRequest`.

    Raises PlanError if the plan cannot train one of the tables.
    """
    tables, of_names = tuple(tables), {variable.name: variable for variable in variables}
    for table in tables:
        _refuse_route(table, plan, of_names[table.variable])
        if script_runs_steps:
            _refuse_script(table, plan)
        _refuse_lookahead(table, plan)
        _refuse_other_slots(table, plan)
    return tuple(_note(table, plan) for table in tables if plan.workers > 1)


def _refuse_route(table: GrowingTable, plan: Plan, variable: VariableInfo) -> None:
    """Raises PlanError unless each key has one owner, or there is only one process."""
    (planned,) = [one for one in plan.variables if one.name == table.variable]
    route = route_named(planned.route)
    if route.grows or (route.sends_nothing and plan.replicas == 1):
        return
    _refuse_use(table, plan, variable)
    raise PlanError(
        f"the vocabulary of «{table.layer}» (GrowingEmbedding) grows, and with the route «{planned.route}» no rank "
        "owns a key"
    ).about(Setting.of("comm", plan.comm), remedy="choose comm=sharded or comm=hybrid, or comm=local for one process")


def _refuse_use(table: GrowingTable, plan: Plan, variable: VariableInfo) -> None:
    """Raises PlanError if no choice of comm gives the keys owners, because of how the model uses the rows."""
    if any(route.grows and route.takes(variable, servers=plan.servers) for route in all_routes()):
        return
    if variable.gradient is GradientKind.SPARSE:
        use = f"«{variable.immovable_op}» {variable.immovable_because or 'uses it directly'}"
    else:
        use = f"its gradient is {variable.gradient.value}, because it is used by more than lookups"
    raise PlanError(
        f"the vocabulary of «{table.layer}» (GrowingEmbedding) grows, but no rank can own its keys, because every rank "
        f"needs all rows of «{variable.name}»: {use}"
    ).about(
        Setting.of("comm", plan.comm),
        remedy="use the rows only in lookups before the first update of the step, or choose comm=local for one process",
    )


def _refuse_script(table: GrowingTable, plan: Plan) -> None:
    """Raises PlanError if only all ranks together can look up keys."""
    (planned,) = [one for one in plan.variables if one.name == table.variable]
    if route_named(planned.route).needs_all_ranks:
        raise PlanError(
            f"the vocabulary of «{table.layer}» (GrowingEmbedding) grows, and a script may run ops on one worker, but "
            "only all ranks together can look up keys"
        ).about(
            Setting.of("comm", plan.comm),
            remedy="choose comm=local, or train with parallax_runner.fit or with a function of the model",
        )


def _refuse_lookahead(table: GrowingTable, plan: Plan) -> None:
    if plan.options.lookahead is Lookahead.ON:
        raise PlanError(
            f"the vocabulary of «{table.layer}» (GrowingEmbedding) grows, so the rows of the next step are unknown "
            "before the current step ends"
        ).about(Setting.of("comm.lookahead", "on"), remedy="choose comm.lookahead=auto, which is off here")


def _refuse_other_slots(table: GrowingTable, plan: Plan) -> None:
    """Raises PlanError unless all slots of a table that evicts keys start afresh, and are with the rows."""
    if not table.every_steps:
        return
    (planned,) = [one for one in plan.variables if one.name == table.variable]
    for slot in sorted({*planned.slots} - {*table.renewed}):
        raise PlanError(
            f"«{table.layer}» (GrowingEmbedding) evicts keys, and its slot «{slot}» would keep the values of another "
            "key when a row is taken again: pass the optimizer that updates the table to set_optimizer of the layer, "
            "or to growing_lookup"
        )
    for slot in sorted({*table.renewed} - {*planned.slots}):
        raise PlanError(
            f"«{table.layer}» (GrowingEmbedding) evicts keys, and the update does not use «{slot}» row by row like the "
            "table, so it cannot start afresh with a row: choose another optimizer, or leave out evict"
        )


def _note(table: GrowingTable, plan: Plan) -> str:
    return (
        f"the vocabulary of «{table.layer}» grows: each bucket of its map ({_names_of_map(table)}) is on one rank, "
        f"rank = bucket mod {plan.workers}"
    )


def _names_of_map(table: GrowingTable) -> str:
    return ", ".join(name.rpartition("/")[2] for name in table.map_variables)
