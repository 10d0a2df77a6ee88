"""Plans say which variables belong to maps of keys."""

from __future__ import annotations

import dataclasses

import pytest

from parallax_runner.analysis.variable_info import GrowingTable
from parallax_runner.plan.plan import Plan, VariablePlan, of_json, to_json
from parallax_runner.planning.maps import with_maps
from parallax_runner.planning.plan_table import placed_on

USERS = GrowingTable("users", "users/rows", ("users/keys", "users/index"), places=2, has_overflow_rows=False)


def variable(name: str, route: str) -> VariablePlan:
    gradient = "none" if route == "local" else "sparse"
    return VariablePlan(name, (1024, 2), "int64", 16384, gradient, route, (), (), 0, "its own reason")


def made(route: str) -> Plan:
    names = {"users/rows": route, "users/keys": "local", "users/index": "local", "step": "local"}
    variables = tuple(variable(name, one) for name, one in names.items())
    return with_maps([USERS], Plan("mine", 2, 0, "", variables, ()))


@pytest.mark.parametrize(("route", "place"), [("alltoall", "rank = row mod 2"), ("local", "every rank")])
def test_a_map_is_placed_like_its_table(route: str, place: str) -> None:
    plan = made(route)
    rows, keys, index, step = plan.variables
    assert (keys.map_of, index.map_of) == ("users/rows",) * 2
    assert (rows.map_of, step.map_of, step.reason) == (None, None, "its own reason")
    assert plan.placing_route(keys) == route
    assert placed_on(keys, plan) == placed_on(index, plan) == place
    assert placed_on(step, plan) == "every rank"
    assert "the map of «users»" in keys.reason
    assert of_json(to_json(plan)) == plan


def test_a_plan_without_growing_tables_does_not_change() -> None:
    plan = dataclasses.replace(made("alltoall"), comm="other")
    assert with_maps([], plan) is plan
