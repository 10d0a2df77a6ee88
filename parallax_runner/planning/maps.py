"""Says in a plan which variables are parts of the maps of vocabularies that grow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from parallax_runner.analysis.variable_info import GrowingTable
from parallax_runner.plan.plan import Plan, VariablePlan


def with_maps(tables: Iterable[GrowingTable], plan: Plan) -> Plan:
    """Returns the plan with `map_of` and the reason of each variable of a map."""
    table_of = {name: table for table in tables for name in table.map_variables}
    if not table_of:
        return plan
    return dataclasses.replace(plan, variables=tuple(_with_map(one, table_of.get(one.name)) for one in plan.variables))


def _with_map(variable: VariablePlan, table: GrowingTable | None) -> VariablePlan:
    if table is None:
        return variable
    reason = f"a part of the map of «{table.layer}», whose buckets are placed like the rows"
    return dataclasses.replace(variable, map_of=table.variable, reason=reason)
