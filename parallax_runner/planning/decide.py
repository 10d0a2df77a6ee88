"""Uses the cost model to decide whether rows are requested in advance (`comm.lookahead=auto`), and to choose routes
(`comm=auto`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from parallax_runner.plan.comm_options import CommOptions, Lookahead
from parallax_runner.planning.choose import choose_routes
from parallax_runner.planning.cost.model import CostModel
from parallax_runner.planning.lookahead import in_effect, may_ask_ahead
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan


def decided(request: PlanRequest, model: CostModel) -> PlanRequest:
    """Returns the request with the decisions of the cost model.

    With `comm.lookahead=auto`, rows are requested in advance if that makes the predicted step shorter, or if there is
    no prediction because nothing was measured. With `comm=auto`, a route is chosen for each variable.

    `model` is the cost model for the request. The options in effect replace the options of `model`.
    """
    if may_ask_ahead(request) and in_effect(request).lookahead is Lookahead.AUTO:
        request = dataclasses.replace(request, slower_ahead=_slower_ahead(request, model))
    if not request.mode.is_chosen_by_cost:
        return request
    return dataclasses.replace(
        request, choice=choose_routes(request.variables, with_options(model, in_effect(request)))
    )


def with_options(model: CostModel, options: CommOptions) -> CostModel:
    """Returns the cost model for the same cluster with other options."""
    return dataclasses.replace(model, options=options)


def _slower_ahead(request: PlanRequest, model: CostModel) -> str | None:
    """Returns the reason not to use lookahead, or None if it shortens the predicted step or there is no prediction."""
    with_secs, without_secs = (
        _step_secs(request, with_options(model, dataclasses.replace(request.options, lookahead=lookahead)))
        for lookahead in (Lookahead.AUTO, Lookahead.OFF)
    )
    if with_secs is None or without_secs is None or with_secs < without_secs:
        return None
    return (
        f"the cost model predicts {1000 * with_secs:.4g} ms per step with lookahead and {1000 * without_secs:.4g} ms "
        "without (comm.lookahead=on forces lookahead)"
    )


def _step_secs(request: PlanRequest, model: CostModel) -> float | None:
    return model.step_secs(request.variables, _routes(request, model))


def _routes(request: PlanRequest, model: CostModel) -> Mapping[str, str]:
    if request.mode.is_chosen_by_cost:
        return choose_routes(request.variables, model).routes
    return {planned.name: planned.route for planned in make_plan(request).variables}
