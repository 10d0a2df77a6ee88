"""Plans with which a vocabulary would grow differently than on one device are refused, with the reason and remedy."""

from __future__ import annotations

import dataclasses

import pytest

from parallax_runner.analysis.variable_info import GrowingTable
from parallax_runner.errors import PlanError
from parallax_runner.plan.comm_options import Lookahead
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.growing import check_growing
from tests.single.planning.test_planner import SPARSE
from tests.single.plans import plan_of

TABLE = GrowingTable("users", SPARSE.name, ("keys", "index", "fill", "overflow"), places=2, has_overflow_rows=False)


def plan(comm: str, *, workers: int = 2, lookahead: Lookahead = Lookahead.AUTO) -> Plan:
    made = plan_of([SPARSE], comm=comm, workers=workers)
    return dataclasses.replace(made, options=dataclasses.replace(made.options, lookahead=lookahead))


def test_owners_of_keys_may_grow() -> None:
    (note,) = check_growing([TABLE], plan("sharded"))
    assert "«users» grows" in note
    assert "rank = bucket mod 2" in note
    assert check_growing([TABLE], plan("local", workers=1)) == ()
    assert check_growing([], plan("mpi")) == ()


@pytest.mark.parametrize("comm", ["mpi", "ps", "hybrid"])
def test_other_modes_are_refused(comm: str) -> None:
    with pytest.raises(PlanError, match=f"comm={comm}: the vocabulary of «users».*choose comm=sharded"):
        check_growing([TABLE], plan(comm))


def test_slots_that_would_keep_values_of_other_keys_are_refused() -> None:
    evicting = dataclasses.replace(TABLE, unused_steps=3, every_steps=2)
    made = plan("sharded")
    (rows,) = made.variables
    with_slot = dataclasses.replace(made, variables=(dataclasses.replace(rows, slots=("accumulator",)),))
    with pytest.raises(PlanError, match=r"its slot «accumulator» would keep the values of another key.*set_optimizer"):
        check_growing([dataclasses.replace(evicting, renewed=())], with_slot)
    check_growing([dataclasses.replace(evicting, renewed=("accumulator",))], with_slot)
    with pytest.raises(PlanError, match="the update does not use «column_sums» row by row"):
        check_growing([dataclasses.replace(evicting, renewed=("accumulator", "column_sums"))], with_slot)
    check_growing([TABLE], with_slot)


def test_lookahead_is_refused() -> None:
    with pytest.raises(PlanError, match=r"comm.lookahead=on: .*choose comm.lookahead=auto"):
        check_growing([TABLE], plan("sharded", lookahead=Lookahead.ON))
    check_growing([TABLE], plan("sharded", lookahead=Lookahead.OFF))
