"""Decides whether rows are requested one step before they are needed, and states the reasons if they are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import CommOptions, Lookahead
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.routes.registry import route_named


def in_effect(request: PlanRequest, routes: Collection[str] | None = None) -> CommOptions:
    """Returns the options of the request, with lookahead turned off if something prevents it. `routes` are the routes
    of all variables, or None if they are not known yet."""
    options = request.options
    is_possible = _hindrance(request) is None and _ranks_exchange(request, routes)
    return options if is_possible else dataclasses.replace(options, lookahead=Lookahead.OFF)


def lookahead_notes(
    variables: Sequence[VariableInfo], routes: Mapping[str, str], request: PlanRequest
) -> Iterator[str]:
    """Yields notes on rows that are not requested in advance, and on variables whose gradients are all sent within
    their own step."""
    is_possible = _ranks_exchange(request, routes.values())
    could = [variable for variable in variables if is_possible and _applies(variable, routes, request)]
    if request.options.lookahead is Lookahead.ONE and not could:
        yield (
            "comm.lookahead=1 has no effect: it needs rows that have owners, and workers that exchange other gradients "
            "among themselves"
        )
    if could and (reason := _hindrance(request)) is not None:
        yield f"no rows are requested in advance: {reason}"
        return
    unknown = {variable.name: variable.unknown_ahead for variable in could if variable.unknown_ahead is not None}
    tied = {
        variable.name: variable.tied_rows
        for variable in could
        if request.options.lookahead is Lookahead.ONE
        and route_named(routes[variable.name]).sends_behind
        and variable.unknown_ahead is None
        and variable.tied_rows is not None
    }
    if unknown:
        yield f"the rows of {_names(unknown)} are not requested in advance: {_first_reason(unknown)}"
    if tied:
        yield f"all gradients of {_names(tied)} are sent within their step: {_first_reason(tied)}"


def _names(reasons: Mapping[str, str]) -> str:
    return ", ".join(f"«{name}»" for name in reasons)


def _first_reason(reasons: Mapping[str, str]) -> str:
    first, *others = reasons.values()
    return f"for the first variable, {first}" if others else first


def _applies(variable: VariableInfo, routes: Mapping[str, str], request: PlanRequest) -> bool:
    is_sparse = variable.gradient is GradientKind.SPARSE
    return is_sparse and request.options.lookahead in route_named(routes[variable.name]).asks_ahead


def _ranks_exchange(request: PlanRequest, routes: Collection[str] | None) -> bool:
    """Returns whether ranks exchange data among themselves, which lookahead needs for exchanging row ids."""
    if routes is None:
        preset = request.routes
        routes = () if preset is None else (preset.dense, preset.sparse)
        if preset is None:
            return True
    return any(route_named(route).is_collective for route in routes)


def _hindrance(request: PlanRequest) -> str | None:
    """Returns the reason why no rows at all are requested in advance, or None if there is no such reason."""
    if request.replicas_per_worker > 1:
        return "a worker has several replicas"
    if request.script_runs_steps:
        return "a script runs the steps, so the next batch is not known"
    if not request.options.waits_for_all:
        return "workers do not wait for each other"
    if request.options.lookahead is Lookahead.AUTO:
        if not request.spans_hosts:
            return "all workers are on one machine, where lookahead is slower (comm.lookahead=1 forces lookahead)"
        return request.slower_ahead
    return None
