"""Decides whether rows are requested one step before they are needed, and states the reasons if they are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import CommOptions, Lookahead
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.routes.registry import route_named


def in_effect(request: PlanRequest, routes: Mapping[str, str] | None = None) -> CommOptions:
    """Returns the options of the request, with lookahead turned off if something prevents it. `routes` are those of the
    variables, if they are known."""
    if _hindrance(request, routes or {}) is None:
        return request.options
    return dataclasses.replace(request.options, lookahead=Lookahead.OFF)


def may_ask_ahead(request: PlanRequest) -> bool:
    """Returns whether the plan can have variables whose rows can be requested in advance."""
    preset = request.routes
    return preset is None or route_named(preset.sparse).asks_ahead


def lookahead_notes(
    variables: Sequence[VariableInfo], routes: Mapping[str, str], request: PlanRequest
) -> Iterator[str]:
    """Yields notes on rows that are not requested in advance."""
    if request.options.lookahead is Lookahead.OFF:
        return
    could = [variable for variable in variables if _has_owned_rows(variable, routes[variable.name])]
    if not could:
        if request.options.lookahead is Lookahead.ON:
            yield "comm.lookahead=on has no effect: it needs variables whose rows are owned by ranks (comm=sharded)"
        return
    reason = _hindrance(request, routes)
    if reason is not None:
        yield f"no rows are requested in advance: {reason}"
        return
    unknown = {variable.name: variable.unknown_ahead for variable in could if variable.unknown_ahead is not None}
    if unknown:
        yield f"the rows of {_names(unknown)} are not requested in advance: {_first_reason(unknown)}"


def _names(reasons: Mapping[str, str]) -> str:
    return ", ".join(f"«{name}»" for name in reasons)


def _first_reason(reasons: Mapping[str, str]) -> str:
    first, *others = reasons.values()
    return f"for the first variable, {first}" if others else first


def _has_owned_rows(variable: VariableInfo, route: str) -> bool:
    """Returns whether the variable's rows are on a route on which they can be requested in advance."""
    return variable.gradient is GradientKind.SPARSE and route_named(route).asks_ahead


def _hindrance(request: PlanRequest, routes: Mapping[str, str]) -> str | None:
    """Returns the reason why no rows at all are requested in advance, or None if there is no such reason."""
    if any(route_named(route).on_servers for route in routes.values()):
        return "variables are on servers, and a session with servers has no threads apart for the next step"
    if request.replicas_per_worker > 1:
        return "a worker has several replicas"
    if request.script_runs_steps:
        return "a script runs the steps, so the next batch is not known"
    if not request.options.waits_for_all:
        return "workers do not wait for each other"
    if request.options.lookahead is Lookahead.AUTO:
        if not request.spans_hosts:
            return "all workers are on one machine, where lookahead is slower (comm.lookahead=on forces lookahead)"
        return request.slower_ahead
    return None
