"""The plan of a small graph, as a file that people review when it changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan, Route
from tests.single.small_models import assert_golden, captured, clip, planned, planned_auto, routes_model


@pytest.mark.parametrize("comm", ["hybrid", "sharded"])
def test_plan(comm: str, tmp_path: Path) -> None:
    plan = planned(captured(optimizer="adam", process=clip), comm, partitions=4)
    assert_golden_plan(f"plan_{comm}.json", plan, tmp_path)


def test_plan_auto(tmp_path: Path) -> None:
    plan = planned_auto(captured(routes_model, process=clip))
    routes = {variable.name: variable.route for variable in plan.variables}
    assert routes == {
        "frequent": Route.ALLREDUCE,
        "rare": Route.ALLTOALL,
        "inner": Route.ALLGATHER,
        "weights": Route.ALLREDUCE,
        "global_step": Route.LOCAL,
    }
    assert_golden_plan("plan_auto.json", plan, tmp_path)


def assert_golden_plan(name: str, plan: Plan, tmp_path: Path) -> None:
    # The fingerprint covers attributes that TensorFlow's next release may add.
    plans.save(dataclasses.replace(plan, fingerprint="…"), tmp_path / "plan.json")
    assert_golden(name, (tmp_path / "plan.json").read_text(encoding="utf-8"))
