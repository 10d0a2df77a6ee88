"""Plans with which it would not be known which rows have changed are refused, and tables of which all rows are in each
delta are noted."""

from __future__ import annotations

import dataclasses

import pytest

from parallax_runner.analysis.variable_info import RowsWritten
from parallax_runner.errors import PlanError
from parallax_runner.planning.deltas import check_deltas
from tests.single.planning.test_planner import DENSE, SPARSE
from tests.single.plans import plan_of

TOUCHED = dataclasses.replace(SPARSE, rows_written=RowsWritten.TOUCHED)
ALL = dataclasses.replace(SPARSE, rows_written=RowsWritten.ALL)


@pytest.mark.parametrize(("comm", "workers"), [("sharded", 2), ("mpi", 2), ("local", 1)])
def test_ranks_notice_changes(comm: str, workers: int) -> None:
    plan = plan_of([TOUCHED, DENSE], comm=comm, workers=workers)
    assert check_deltas(3, plan, [TOUCHED, DENSE], ()) == ()


@pytest.mark.parametrize("comm", ["ps", "hybrid"])
def test_tables_on_servers_are_refused(comm: str) -> None:
    plan = plan_of([TOUCHED, DENSE], comm=comm)
    with pytest.raises(PlanError, match=rf"ckpt.delta_steps=3: comm={comm} has the rows .*choose comm=sharded"):
        check_deltas(3, plan, [TOUCHED, DENSE], ())
    assert check_deltas(None, plan, [TOUCHED, DENSE], ()) == ()


def test_dense_variables_on_servers_are_whole_in_each_delta() -> None:
    assert check_deltas(3, plan_of([DENSE], comm="ps"), [DENSE], ()) == ()


def test_parts_of_rows_are_refused() -> None:
    with pytest.raises(PlanError, match="divide the variable by rows"):
        check_deltas(3, plan_of([TOUCHED], comm="sharded"), [TOUCHED], {TOUCHED.name})


def test_a_table_of_which_each_update_writes_all_rows_is_noted() -> None:
    (note,) = check_deltas(3, plan_of([ALL], comm="sharded"), [ALL], ())
    assert note.startswith(f"each delta can have all rows of «{ALL.name}», because its update writes all rows of it or")
