"""Chooses the rows of which every rank has a copy, where rows are owned by the ranks (rewrite/hot_rows.py).

A row that every rank touches in every step costs the same bytes either way: two times a row a rank. What differs is
work and waiting, and a row that is touched less often travels for nothing in an allreduce. So it is a matter of the
cluster's constants, and few rows at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.plan.cost import CostModel
from parallax_runner.plan.measured import RowStatistics
from parallax_runner.plan.plan import Plan, Prediction, Route, RouteCost, VariablePlan
from parallax_runner.plan.touched import Touched
from parallax_runner.plan.traffic import both_ways_of_owners, sent_by_route, traffic

AUTO = "auto"


class Gain(NamedTuple):
    """Seconds a step that copies save on the links, in waiting and in work; less than 0: what they cost."""

    link_secs: float = 0.0
    latency_secs: float = 0.0
    work_secs: float = 0.0

    @property
    def secs(self) -> float:
        """All three."""
        return self.link_secs + self.latency_secs + self.work_secs


def with_hot_rows(plan: Plan, variables: Sequence[VariableInfo], model: CostModel, wanted: int | str) -> Plan:
    """The plan with `wanted` hot rows of each variable on the alltoall route, the most touched ones; with AUTO as many
    as pay by the cost model. None of a variable whose rows were not measured. What copies save or cost is taken off the
    prediction, as if none of it overlapped."""
    if wanted == 0:
        return plan
    if not plan.by_route(Route.ALLTOALL):
        note = f"comm.hot_rows={wanted} copies no row: no variable's rows are owned by the ranks"
        return dataclasses.replace(plan, notes=(*plan.notes, note))
    infos = {variable.name: variable for variable in variables}
    routes = {planned.name: planned.route for planned in plan.variables}
    saved_ms = 1000 * copying_saves_secs(variables, routes, model, wanted)
    if wanted == AUTO and saved_ms == 0.0:
        note = "comm.hot_rows=auto copies no row: by the cost model none is cheaper on every rank than with its owner"
        return dataclasses.replace(plan, notes=(*plan.notes, note))
    copies = any(_choose(infos[planned.name], model, wanted)[0] for planned in plan.by_route(Route.ALLTOALL))
    once_more_ms = 1000 * _once_more_secs(routes, model) if copies else 0.0
    planned = tuple(
        _copied(variable, infos[variable.name], model, *_choose(infos[variable.name], model, wanted))
        if variable.route is Route.ALLTOALL
        else variable
        for variable in plan.variables
    )
    note = f"comm.hot_rows={wanted}: by the cost model copies cost {-saved_ms:.3g} ms a step more than they save"
    return dataclasses.replace(
        plan,
        variables=planned,
        notes=(*plan.notes, note) if saved_ms < 0 else plan.notes,
        predicted=_sooner(plan.predicted, saved_ms, once_more_ms),
    )


def copying_saves_secs(
    variables: Iterable[VariableInfo], routes: Mapping[str, Route], model: CostModel, wanted: int | str
) -> float:
    """Seconds a step that copies of `wanted` rows save, of each variable that ranks own; less than 0 where they cost
    more than they save, and 0 where AUTO therefore makes none."""
    if wanted == 0:
        return 0.0
    owned = [variable for variable in variables if routes[variable.name] is Route.ALLTOALL]
    copied = [gain for rows, gain in (_choose(variable, model, wanted) for variable in owned) if rows]
    if not copied:
        return 0.0
    saved = sum(gain.secs for gain in copied) - _once_more_secs(routes, model)
    return max(0.0, saved) if wanted == AUTO else saved


def _once_more_secs(routes: Mapping[str, Route], model: CostModel) -> float:
    """What the copies' allreduce takes if it is the only one."""
    return model.once([*routes.values(), Route.ALLREDUCE]).secs - model.once(routes.values()).secs


def _sooner(predicted: Prediction, saved_ms: float, once_more_ms: float) -> Prediction:
    step_ms, exchange_ms, shared_ms = predicted.step_ms, predicted.exchange_ms, predicted.shared_ms
    return dataclasses.replace(
        predicted,
        step_ms=None if step_ms is None else step_ms - saved_ms,
        exchange_ms=None if exchange_ms is None else exchange_ms - saved_ms,
        shared_ms=None if shared_ms is None else shared_ms + once_more_ms,
    )


def _choose(variable: VariableInfo, model: CostModel, wanted: int | str) -> tuple[tuple[int, ...], Gain]:
    """Hot rows, ascending, and what copying them saves."""
    rows = None if model.measured is None else model.measured.of(variable.name)
    if rows is None:
        return (), Gain()
    gains = [(row, _gain(variable, model, count / rows.samples)) for row, count in rows.hot]
    kept = [(row, gain) for row, gain in gains if gain.secs > 0] if wanted == AUTO else gains[: int(wanted)]
    if not kept:
        return (), Gain()
    own_secs = model.each_secs(model.constants.allreduce, variable)
    together = Gain(sum(gain.link_secs for _, gain in kept), -own_secs, sum(gain.work_secs for _, gain in kept))
    if wanted == AUTO and together.secs <= 0:
        return (), Gain()
    return tuple(sorted(row for row, _ in kept)), together


def _gain(variable: VariableInfo, model: CostModel, chance: float) -> Gain:
    """What a step saves by copying a row that each rank touches with this chance."""
    constants, ranks = model.constants, model.cluster.workers
    parts = traffic(variable, Touched(1.0, 1.0, is_bound=False), model.ps, model.compression)
    others = (ranks - 1) / ranks
    merged = 1 - (1 - chance) ** ranks
    apply_secs = variable.row_bytes * constants.apply_sparse_secs_per_byte + constants.apply_sparse_secs_per_row
    copy_secs = constants.apply_dense_secs_per_byte
    row_bytes = parts.pulled + variable.itemsize
    owned_link = chance * both_ways_of_owners(parts) * others * constants.alltoall.secs_per_byte
    copied_link = 2 * row_bytes * others * constants.allreduce.secs_per_byte
    owned = chance * ((2 * parts.pulled + parts.pushed) * copy_secs + parts.pushed * constants.merge_secs_per_byte)
    owned += merged * apply_secs / ranks
    copied = 2 * row_bytes * copy_secs + merged * apply_secs
    return Gain(owned_link - copied_link, 0.0, owned - copied)


def _copied(
    planned: VariablePlan, variable: VariableInfo, model: CostModel, hot: tuple[int, ...], gain: Gain
) -> VariablePlan:
    if not hot:
        return planned
    rows = None if model.measured is None else model.measured.of(variable.name)
    assert rows is not None
    ranks, touched = model.cluster.workers, model.touched(variable)
    assert touched is not None
    often = _touches(rows, hot)
    cold = Touched(max(0.0, touched.distinct - often), touched.merged, is_bound=touched.is_bound)
    parts = traffic(variable, cold, model.ps, model.compression)
    of_hot = len(hot) * (traffic(variable, Touched(1, 1, is_bound=False), model.ps, model.compression).pulled)
    of_hot += len(hot) * variable.itemsize
    sent = round(sent_by_route(parts, Route.ALLTOALL, ranks) + 2 * of_hot * (ranks - 1) / ranks)
    costs = tuple(_with_copies(cost, sent, gain) if cost.route is Route.ALLTOALL else cost for cost in planned.costs)
    reason = f"{planned.reason}; {len(hot)} rows are touched so often that every rank has a copy"
    return dataclasses.replace(planned, hot_rows=hot, sent_bytes_per_step=sent, reason=reason, costs=costs)


def _with_copies(cost: RouteCost, sent_bytes: int, gain: Gain) -> RouteCost:
    return dataclasses.replace(
        cost,
        sent_bytes=sent_bytes,
        link_secs=cost.link_secs - gain.link_secs,
        latency_secs=cost.latency_secs - gain.latency_secs,
        work_secs=cost.work_secs - gain.work_secs,
    )


def _touches(rows: RowStatistics, hot: tuple[int, ...]) -> float:
    """How many of the hot rows a rank touches in a step."""
    chosen = set(hot)
    return sum(count for row, count in rows.hot if row in chosen) / rows.samples
