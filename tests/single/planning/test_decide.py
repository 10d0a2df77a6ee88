"""What the cost model decides: lookahead under comm.lookahead=auto, and with it the routes of comm=auto."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.plan.comm_options import CommOptions, Lookahead
from parallax_runner.plan.plan import Plan, Route
from parallax_runner.planning.cost.constants import DEFAULTS
from parallax_runner.planning.cost.measured import Measured, RowStatistics
from parallax_runner.planning.cost.model import Cluster, CostModel
from parallax_runner.planning.decide import decided, with_options
from parallax_runner.planning.explain import explain
from parallax_runner.planning.lookahead import in_effect
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan
from tests.single.planning.test_planner import info

ROWS, DISTINCT, SAMPLES = 100_000, 1000, 40
TABLE = info("table", "sparse", (ROWS, 64), gradient_rows=DISTINCT)
SLOW = DEFAULTS.with_link(gbit_per_sec=0.1, latency_us=100)
# Each row in one sample only: no two steps touch the same row. Each row in all samples: all steps touch the same rows.
APART, TOGETHER = ((1, SAMPLES * DISTINCT),), ((SAMPLES, DISTINCT),)


def measured(incidence: tuple[tuple[int, int], ...], *variables: VariableInfo, step_secs: float = 1.0) -> Measured:
    merged = sum(rows for _, rows in incidence) * 4 / SAMPLES if incidence == APART else DISTINCT
    rows = tuple(RowStatistics(one.name, ROWS, DISTINCT, DISTINCT, merged, SAMPLES, incidence) for one in variables)
    return Measured("f", 4, 10, step_secs, 8, None, variables, rows, "2026-01-01")


def request(comm: str = "sharded", lookahead: Lookahead = Lookahead.AUTO, **fields: Any) -> PlanRequest:
    options = CommOptions(lookahead=lookahead)
    asked = {"workers": 4, "servers": 4, "spans_hosts": True} | fields
    return PlanRequest(comm, (TABLE,), "f", options=options, **asked)


def planned(asked: PlanRequest, known: Measured | None) -> tuple[PlanRequest, Plan]:
    model = CostModel(Cluster(4, 4), SLOW, measured=known)
    made = decided(asked, model)
    return made, explain(make_plan(made), made.variables, with_options(model, in_effect(made)))


def test_rows_are_asked_for_ahead_where_a_step_is_shorter_so() -> None:
    made, plan = planned(request(), measured(APART, TABLE))
    assert made.slower_ahead is None and plan.variables[0].is_ahead
    _, off = planned(request(lookahead=Lookahead.OFF), measured(APART, TABLE))
    assert not off.variables[0].is_ahead
    # All rows are early: what is left within the step are the gradients, an exchange of no late rows, and the update.
    (early,) = (cost for cost in plan.variables[0].costs if cost.route == Route.ALLTOALL)
    (late,) = (cost for cost in off.variables[0].costs if cost.route == Route.ALLTOALL)
    assert early.before_secs == pytest.approx(0.0) and early.after_secs == pytest.approx(late.after_secs, rel=0.01)
    assert early.aside_secs == pytest.approx(late.before_secs, rel=0.01)
    saved_ms = (off.predicted.step_ms or 0) - (plan.predicted.step_ms or 0)
    once_secs = SLOW.alltoall.overhead_secs + 3 * SLOW.alltoall.latency_secs
    assert saved_ms == pytest.approx(1000 * (late.before_secs + once_secs), rel=0.01)


def test_the_model_s_reason_against_it_is_told_and_can_be_overruled() -> None:
    """Every step touches the same rows, and each further exchange costs more than there is to hide."""
    dear = dataclasses.replace(SLOW, alltoall=dataclasses.replace(SLOW.alltoall, overhead_secs=1.0))
    model = CostModel(Cluster(4, 4), dear, measured=measured(TOGETHER, TABLE, step_secs=0.5))
    plan = make_plan(decided(request(), model))
    assert not plan.variables[0].is_ahead
    on, off = (
        with_options(model, CommOptions(lookahead=each)).step_secs((TABLE,), {"table": Route.ALLTOALL}) or 0.0
        for each in (Lookahead.AUTO, Lookahead.OFF)
    )
    assert on > off + 1
    assert plan.notes == (
        f"no rows are requested in advance: the cost model predicts {1000 * on:.4g} ms per step with lookahead and "
        f"{1000 * off:.4g} ms without (comm.lookahead=on forces lookahead)",
    )
    (forced,) = make_plan(decided(request(lookahead=Lookahead.ON), model)).variables
    assert forced.is_ahead


@pytest.mark.parametrize("fields", [{"spans_hosts": False}, {"lookahead": Lookahead.OFF}, {"comm": "hybrid"}])
def test_nothing_is_decided_where_nothing_could_be_asked_for_ahead(fields: dict[str, Any]) -> None:
    made = decided(request(**fields), _model(APART))
    assert made.slower_ahead is None
    assert not any(variable.is_ahead for variable in make_plan(made).variables)


def _model(incidence: tuple[tuple[int, int], ...]) -> CostModel:
    return CostModel(Cluster(4, 4), SLOW, measured=measured(incidence, TABLE))


def test_without_a_measurement_rows_are_asked_for_ahead_on_several_hosts() -> None:
    made, plan = planned(request(), None)
    assert made.slower_ahead is None and plan.variables[0].is_ahead


def test_auto_takes_owners_for_what_hides_behind_the_computation() -> None:
    """Rows by alltoall cost more in all, but less within the step, unless the computation is too short to hide them."""
    slow_rows = dataclasses.replace(SLOW, alltoall=dataclasses.replace(SLOW.alltoall, secs_per_byte=2.5e-7))
    routes = {}
    for lookahead in (Lookahead.AUTO, Lookahead.OFF):
        for step_secs in (1.0, 0.03):
            known = measured(APART, TABLE, step_secs=step_secs)
            asked = request("auto", lookahead, servers=0)
            made = decided(asked, CostModel(Cluster(4, 0), slow_rows, measured=known))
            assert made.choice is not None
            routes[lookahead, step_secs] = made.choice.routes["table"]
    assert routes == {
        (Lookahead.AUTO, 1.0): Route.ALLTOALL,
        (Lookahead.AUTO, 0.03): Route.ALLGATHER,
        (Lookahead.OFF, 1.0): Route.ALLGATHER,
        (Lookahead.OFF, 0.03): Route.ALLGATHER,
    }
