"""Which variables a plan asks for ahead, and what it says of others."""

from __future__ import annotations

import pytest

from parallax_runner.plan.comm_options import Lookahead
from parallax_runner.plan.plan import Plan
from tests.single.planning.test_planner import DENSE, SPARSE, info, plan

IN_VAIN = "comm.lookahead=on has no effect: it needs variables whose rows are owned by ranks (comm=sharded)"
OTHER = info("other", "sparse", unknown_ahead="the update «Adam» may write rows that a step does not touch")


def ahead(made: Plan) -> list[str]:
    return [variable.name for variable in made.variables if variable.is_ahead]


def test_rows_that_ranks_own_are_asked_for_ahead_where_their_ids_are_known() -> None:
    made = plan(DENSE, SPARSE, OTHER, comm="sharded", spans_hosts=True)
    assert ahead(made) == ["table"]
    reason = "the update «Adam» may write rows that a step does not touch"
    assert made.notes == (f"the rows of «other» are not requested in advance: {reason}",)
    third = info("third", "sparse", unknown_ahead="the gradient has ids that do not come from the lookups")
    (note,) = plan(OTHER, third, comm="sharded", spans_hosts=True).notes
    assert note == f"the rows of «other», «third» are not requested in advance: for the first variable, {reason}"


@pytest.mark.parametrize("comm", ["ps", "hybrid", "mpi", "local"])
def test_rows_that_no_rank_owns_are_not_asked_for_ahead(comm: str) -> None:
    for lookahead in (Lookahead.AUTO, Lookahead.OFF):
        made = plan(DENSE, SPARSE, comm=comm, spans_hosts=True, lookahead=lookahead)
        assert ahead(made) == [] and not any("advance" in note for note in made.notes)
    made = plan(DENSE, SPARSE, comm=comm, lookahead=Lookahead.ON)
    assert ahead(made) == []
    assert made.notes[-1] == IN_VAIN


def test_not_if_it_is_off_nor_with_several_replicas_nor_in_a_script() -> None:
    off = plan(SPARSE, OTHER, comm="sharded", lookahead=Lookahead.OFF)
    assert ahead(off) == [] and off.notes == ()
    for lookahead in (Lookahead.ON, Lookahead.AUTO):
        script = plan(DENSE, SPARSE, comm="sharded", spans_hosts=True, lookahead=lookahead, script_runs_steps=True)
        assert ahead(script) == []
        (note,) = script.notes
        assert note == "no rows are requested in advance: a script runs the steps, so the next batch is not known"
    several = plan(SPARSE, OTHER, comm="sharded", spans_hosts=True, replicas_per_worker=2)
    assert ahead(several) == []
    assert several.notes == ("no rows are requested in advance: a worker has several replicas",)


def test_on_one_machine_only_if_it_is_asked_for() -> None:
    here = plan(SPARSE, comm="sharded")
    assert ahead(here) == []
    (note,) = here.notes
    assert note.startswith("no rows are requested in advance: all workers are on one machine, where lookahead is")
    assert ahead(plan(SPARSE, comm="sharded", lookahead=Lookahead.ON)) == ["table"]


def test_to_ask_for_it_in_vain_is_told() -> None:
    (note,) = plan(DENSE, comm="sharded", lookahead=Lookahead.ON).notes[1:]
    assert note == IN_VAIN
    assert plan(SPARSE, comm="sharded", lookahead=Lookahead.ON).notes == ()


def test_a_byte_for_each_id_says_when_its_row_comes() -> None:
    off, on = (
        plan(SPARSE, comm="sharded", lookahead=each).variables[0].sent_bytes_per_step or 0
        for each in (Lookahead.OFF, Lookahead.ON)
    )
    assert on - off == 50 // 2  # of 50 ids half are the other rank's
