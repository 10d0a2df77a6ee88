"""What `action=plan` says of the routes that `comm=auto` would choose."""

from __future__ import annotations

import dataclasses
import re

import pytest

from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.advice import advice
from parallax_runner.planning.cost.model import CostModel
from parallax_runner.planning.explain import explain
from tests.single.planning.cost.test_cost import BIG, model, touching
from tests.single.planning.test_planner import DENSE, info
from tests.single.planning.test_planner import plan as planned

ALPHA = 0.0001  # few rows: rows travel, and not the whole table


def told(plan: Plan, of: CostModel) -> str | None:
    return advice(explain(plan, (BIG,), of), (BIG,), of, of)


def test_the_same_routes_are_nothing_to_change() -> None:
    assert told(planned(BIG, comm="mpi"), model(touching(ALPHA))) == "comm=auto would choose the same routes"


def test_other_routes_are_named_with_what_they_save_of_a_step() -> None:
    of = model(touching(ALPHA))
    text = str(told(planned(BIG, comm="ps"), of))
    found = re.fullmatch(
        r"comm=auto would choose allgather for big: a step would take (\S+) ms instead of (\S+) ms, (\S+) % less"
        r"(, which is within the model's error)?",
        text,
    )
    assert found is not None, text
    then, now = (of.step_secs((BIG,), {"big": route}) or 0 for route in ("allgather", "ps"))
    assert (float(found[1]), float(found[2])) == pytest.approx((1000 * then, 1000 * now), rel=0.01)
    assert float(found[3]) == pytest.approx(100 * (1 - then / now), rel=0.1)
    assert (found[4] is not None) == (1 - then / now < 0.1)


def test_without_a_measurement_it_is_of_exchanges_and_says_how_to_measure() -> None:
    text = str(told(planned(BIG, comm="ps"), model()))
    assert "the exchanges and updates in a step would take" in text and "comm.measure_rows=true measures" in text


def test_many_variables_are_counted() -> None:
    tables = [info(f"t{number}", "sparse", (100_000, 64), gradient_rows=10) for number in range(5)]
    of = model()
    text = advice(explain(planned(*tables, comm="ps"), tables, of), tables, of, of)
    assert "for t0, t1, t2 and 2 more" in str(text)


@pytest.mark.parametrize(
    "plan",
    [
        planned(BIG, comm="local", workers=1),
        dataclasses.replace(planned(BIG, comm="ps"), options=CommOptions(sync=False)),
        dataclasses.replace(planned(DENSE, comm="mpi"), comm="auto"),
    ],
)
def test_what_the_model_does_not_know_gets_no_advice(plan: Plan) -> None:
    assert advice(plan, (BIG,), model(), model()) is None
