"""The table that says what each route would cost, and why one won."""

from __future__ import annotations

import dataclasses

import pytest

from parallax_runner.driver.report import show_plan
from parallax_runner.plan.plan import Plan, Prediction, Route, RouteCost, VariablePlan
from parallax_runner.planning.cost.constants import DEFAULTS
from parallax_runner.planning.cost_table import cost_table
from tests.single.planning.test_plan_table import cells_of


def cost(route: Route, link_ms: float, latency_ms: float = 0.0, work_ms: float = 0.0) -> RouteCost:
    return RouteCost(route, 1000, link_ms / 1000, latency_ms / 1000, work_ms / 1000)


def variable(name: str, kind: str, route: Route, *costs: RouteCost, alpha: float | None = None) -> VariablePlan:
    return VariablePlan(name, (10, 4), "float32", 160, kind, route, (), (), 1000, "", costs, alpha)


TABLE = variable(
    "table",
    "sparse",
    Route.PS,
    cost(Route.ALLREDUCE, 40),
    cost(Route.ALLGATHER, 30),
    cost(Route.PS, 12, 3, 1),
    cost(Route.ALLTOALL, 9, 2, 0.5),
    alpha=0.25,
)
KERNEL = variable("kernel", "dense", Route.ALLREDUCE, cost(Route.ALLREDUCE, 5, 1, 2), cost(Route.PS, 20))
STEP = variable("global_step", "none", Route.LOCAL)
PLAN = Plan(
    "hybrid",
    2,
    2,
    "f",
    (TABLE, KERNEL, STEP),
    (),
    rows_measured="2026-01-02",
    predicted=Prediction(step_ms=120.0, compute_ms=100.0, exchange_ms=26.0, shared_ms=2.0),
    constants="defaults",
)


def rows(plan: Plan) -> dict[str, list[str]]:
    """By variable: rows touched, the four routes and why."""
    return cells_of(cost_table(plan))


def test_each_route_has_its_cost_and_the_chosen_one_a_mark_and_its_parts() -> None:
    assert rows(PLAN) == {
        "table": [
            "25 %",
            "40",
            "30",
            "16 ←",
            "11.5",
            "ps: link 12, waiting 3, work 1; alltoall alone is cheaper by 3.8 % of the step",
        ],
        "kernel": ["all", "8 ←", "–", "20", "–", "allreduce: link 5, waiting 1, work 2"],
        "a step": [
            "",
            "",
            "",
            "",
            "",
            "120 ms: computation 100, exchanges and updates 26 ms, of which 2 ms are paid once for all allreduces "
            "and all servers; computation and exchanges may overlap by 6 ms",
        ],
    }


def test_what_was_not_measured_says_so() -> None:
    bounds = dataclasses.replace(PLAN, rows_measured=None, predicted=Prediction(exchange_ms=26.0))
    assert ["upper bounds" in str(cost_table(each).title) for each in (PLAN, bounds)] == [False, True]
    assert "rows touched: measured 2026-01-02" in str(cost_table(PLAN).title)
    assert rows(bounds)["table"][0] == "≤ 25 %"
    assert rows(bounds)["table"][-1].endswith("; alltoall alone is cheaper")
    assert rows(bounds)["a step"][-1] == "exchanges and updates 26 ms; the computation was not measured"
    unknown = dataclasses.replace(bounds, variables=(dataclasses.replace(TABLE, alpha=None, costs=()),))
    assert rows(dataclasses.replace(unknown, predicted=Prediction()))["table"] == ["unknown", *"––––", "ps"]
    assert "was not measured" in rows(dataclasses.replace(unknown, predicted=Prediction()))["a step"][-1]


def test_only_plans_that_the_model_knows_are_shown_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(PLAN, constants=DEFAULTS)
    assert "cost of each route" in capsys.readouterr().err
    without = tuple(dataclasses.replace(each, costs=()) for each in PLAN.variables)
    show_plan(dataclasses.replace(PLAN, variables=without), constants=DEFAULTS)
    assert "cost of each route" not in capsys.readouterr().err
