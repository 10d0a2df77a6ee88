"""Which rows every rank has a copy of: the most touched, as many as wanted, or as many as pay."""

from __future__ import annotations

import dataclasses

import pytest

from parallax_runner.plan.choose import choose_routes
from parallax_runner.plan.constants import DEFAULTS, Constants, Exchange
from parallax_runner.plan.cost import Cluster, CostModel
from parallax_runner.plan.explain import explain
from parallax_runner.plan.hot_rows import AUTO, with_hot_rows
from parallax_runner.plan.measured import Measured, RowStatistics
from parallax_runner.plan.plan import Plan, Route, load, save
from parallax_runner.plan.planner import make_plan
from tests.single.plan.test_planner import DENSE, info

TABLE = info("table", "sparse", (1000, 64), gradient_rows=100)
OTHER = info("other", "sparse", (500, 64), gradient_rows=100)
RANKS = 4
# Rows 7 and 3 are touched by every rank in every step, row 9 by every second, row 2 by one in forty.
HOT = ((7, 40), (3, 40), (9, 20), (2, 1))


def planned(
    wanted: int | str,
    *,
    constants: Constants = DEFAULTS,
    measures: bool = True,
    comm: str = "sharded",
    has_dense: bool = True,
) -> Plan:
    variables = (TABLE, OTHER, DENSE) if has_dense else (TABLE, OTHER)
    rows = RowStatistics("table", 1000, ids=100.0, distinct=60.0, merged=90.0, samples=40, hot=HOT)
    measured = Measured("f", RANKS, 10, 0.1, 8, None, variables, (rows,), "2026-01-01") if measures else None
    plan = make_plan(
        variables,
        comm=comm,
        workers=RANKS,
        servers=0,
        partitions=1,
        average_sparse=True,
        fingerprint="f",
        measured=measured,
    )
    model = CostModel(Cluster(workers=RANKS, servers=0), constants, measured=measured)
    return with_hot_rows(explain(plan, variables, model), variables, model, wanted)


def hot(plan: Plan) -> dict[str, tuple[int, ...]]:
    return {variable.name: variable.hot_rows for variable in plan.variables}


def test_the_most_touched_are_copied() -> None:
    assert hot(planned(3)) == {"table": (3, 7, 9), "other": (), DENSE.name: ()}
    assert hot(planned(0))["table"] == ()
    assert hot(planned(100))["table"] == (2, 3, 7, 9)
    assert "3 rows" in planned(3).variables[0].reason


def test_without_a_measurement_nobody_knows_which() -> None:
    assert set(hot(planned(3, measures=False)).values()) == {()}


def test_where_ranks_own_no_rows_the_plan_says_that_none_is_copied() -> None:
    assert "comm.hot_rows=3 copies no row: no variable's rows are owned by the ranks" in planned(3, comm="mpi").notes
    assert not any("copies no row" in note for note in planned(3).notes)
    assert not planned(0, comm="mpi").notes


def test_auto_copies_what_pays() -> None:
    at_once = Exchange(overhead_secs=0.0, latency_secs=0.0, each_secs=0.0, secs_per_byte=1e-10)
    slow = dataclasses.replace(at_once, secs_per_byte=1e-8)
    # Rows that are owned are a hundred times as dear a byte as copies: worth it if touched often enough.
    cheap_copies = dataclasses.replace(DEFAULTS, allreduce=at_once, alltoall=slow)
    assert hot(planned(AUTO, constants=cheap_copies))["table"] == (3, 7, 9)
    dear = dataclasses.replace(DEFAULTS, allreduce=slow, alltoall=at_once)
    assert hot(planned(AUTO, constants=dear))["table"] == ()


def test_a_choice_of_routes_counts_what_copies_save() -> None:
    """Servers are a little cheaper than owners among the ranks, until these need not send what is touched most."""
    free = Exchange(overhead_secs=0.0, latency_secs=0.0, each_secs=0.0, secs_per_byte=0.0)
    slow = Exchange(overhead_secs=0.0, latency_secs=0.0, each_secs=0.0, secs_per_byte=1e-6)
    rows = RowStatistics("table", 1000, ids=4.0, distinct=2.5, merged=2.5, samples=40, hot=HOT)
    measured = Measured("f", RANKS, 10, 0.1, 8, None, (TABLE,), (rows,), "2026-01-01")
    constants = dataclasses.replace(DEFAULTS, allreduce=free, alltoall=slow, allgather=slow, pull=slow, push=free)
    model = CostModel(Cluster(workers=RANKS, servers=RANKS), constants, measured=measured)

    def chosen(hot_rows: int | str) -> Route:
        table = dataclasses.replace(TABLE, shape=(10_000_000, 64))
        return choose_routes((table,), model, hot_rows=hot_rows).routes["table"]

    assert chosen(0) is Route.PS
    assert chosen(AUTO) is Route.ALLTOALL
    assert chosen(3) is Route.ALLTOALL


def test_auto_pays_for_the_exchange_too_and_says_why_not() -> None:
    plan = planned(AUTO)
    assert hot(plan)["table"] == ()
    assert any("comm.hot_rows=auto copies no row" in note for note in plan.notes)


def test_auto_copies_nothing_that_does_not_pay_for_its_own_tensors() -> None:
    at_once = Exchange(overhead_secs=0.0, latency_secs=0.0, each_secs=0.0, secs_per_byte=1e-10)
    slow = dataclasses.replace(at_once, secs_per_byte=1e-8)
    before, after = (
        planned(wanted, constants=dataclasses.replace(DEFAULTS, allreduce=at_once, alltoall=slow)).predicted.exchange_ms
        for wanted in (0, AUTO)
    )
    assert before is not None and after is not None
    for share, copied in ((0.49, (3, 7, 9)), (0.51, ())):  # of rows and of how many ranks touched them
        each = dataclasses.replace(at_once, each_secs=share * (before - after) / 1000)
        plan = planned(AUTO, constants=dataclasses.replace(DEFAULTS, allreduce=each, alltoall=slow))
        assert hot(plan)["table"] == copied


def test_copies_pay_for_starting_an_allreduce_only_where_there_is_no_other() -> None:
    waits = Exchange(overhead_secs=0.5, latency_secs=0.0, each_secs=0.0, secs_per_byte=0.0)
    constants = dataclasses.replace(DEFAULTS, allreduce=waits)

    def more_ms(*, has_dense: bool) -> float:
        plans = [planned(wanted, constants=constants, has_dense=has_dense) for wanted in (0, 3)]
        before, after = (plan.predicted.exchange_ms for plan in plans)
        assert before is not None and after is not None
        return after - before

    assert more_ms(has_dense=False) - more_ms(has_dense=True) == pytest.approx(500)


def test_the_prediction_counts_what_copies_save_or_cost() -> None:
    at_once = Exchange(overhead_secs=0.0, latency_secs=0.0, each_secs=0.0, secs_per_byte=1e-10)
    slow = dataclasses.replace(at_once, secs_per_byte=1e-8)

    def told(wanted: int, *, allreduce: Exchange, alltoall: Exchange) -> tuple[float, float, float, int, Plan]:
        constants = dataclasses.replace(DEFAULTS, allreduce=allreduce, alltoall=alltoall)
        plan = planned(wanted, constants=constants)
        table = next(variable for variable in plan.variables if variable.name == "table")
        cost = next(cost for cost in table.costs if cost.route is Route.ALLTOALL)
        assert cost.sent_bytes == table.sent_bytes_per_step
        assert plan.predicted.step_ms is not None and plan.predicted.exchange_ms is not None
        return plan.predicted.step_ms, plan.predicted.exchange_ms, 1000 * cost.secs, len(plan.notes), plan

    cheap = {"allreduce": at_once, "alltoall": slow}
    before, after = told(0, **cheap), told(3, **cheap)
    assert after[2] < before[2]
    assert before[0] - after[0] == pytest.approx(before[2] - after[2])
    assert before[1] - after[1] == pytest.approx(before[2] - after[2])
    assert (before[3], after[3]) == (0, 0)

    dear = {"allreduce": slow, "alltoall": at_once}
    before, after = told(0, **dear), told(3, **dear)
    assert after[2] > before[2] and after[1] > before[1]
    assert "comm.hot_rows=3: by the cost model copies cost" in after[4].notes[0]


def test_bytes_are_of_both_exchanges() -> None:
    none, two, all_four = (planned(k).variables[0].sent_bytes_per_step or 0 for k in (0, 2, 4))
    # Two rows there and back, or two rows round the ring with a count each, without their ids.
    row, share = 64 * 4, (RANKS - 1) / RANKS
    measured = 60.0 * (2 * row + 4) * share
    assert two == round(measured - 2.0 * (2 * row + 4) * share + 2 * 2 * (row + 4) * share)
    assert none >= measured
    assert all_four > two


def test_a_plan_keeps_them(tmp_path) -> None:
    save(planned(3), tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == planned(3)
