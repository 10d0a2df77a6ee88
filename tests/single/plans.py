"""Plans for tests, asked for by the names of fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan

OPTIONS = frozenset(field.name for field in dataclasses.fields(CommOptions))


def plan_of(variables: Sequence[VariableInfo], **fields: Any) -> Plan:
    """The plan of two workers and two servers; `fields` are those of `PlanRequest` and of `CommOptions`."""
    options = CommOptions(**{name: fields.pop(name) for name in OPTIONS & set(fields)})
    asked = {"comm": "hybrid", "workers": 2, "servers": 2, "fingerprint": "f"} | fields
    return make_plan(PlanRequest(variables=tuple(variables), options=options, **asked))


def with_options(plan: Plan, **fields: Any) -> Plan:
    """The plan with other values of `CommOptions`."""
    return dataclasses.replace(plan, options=dataclasses.replace(plan.options, **fields))
