"""Which variables a plan asks for ahead, and what it says of others."""

from __future__ import annotations

import pytest

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.plan.comm_options import Lookahead, PsOptions
from parallax_runner.plan.plan import Plan
from tests.single.planning.test_planner import DENSE, SPARSE, info, plan

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


def test_rows_on_servers_are_asked_for_ahead_only_if_it_is_asked_for() -> None:
    for lookahead in (Lookahead.AUTO, Lookahead.OFF):  # it gained nothing in what was measured
        made = plan(DENSE, SPARSE, comm="hybrid", spans_hosts=True, lookahead=lookahead)
        assert ahead(made) == [] and made.notes == ()
    made = plan(DENSE, SPARSE, OTHER, comm="hybrid", lookahead=Lookahead.ONE)
    assert ahead(made) == ["table"]
    assert made.notes[0].startswith("the rows of «other» are not requested in advance: the update «Adam» may write")
    whole = PsOptions(boundary_between_workers_and_servers=False)
    assert ahead(plan(DENSE, SPARSE, comm="hybrid", lookahead=Lookahead.ONE, ps=whole)) == []


@pytest.mark.parametrize(("comm", "variables"), [("hybrid", [SPARSE]), ("ps", [DENSE, SPARSE]), ("mpi", [SPARSE])])
def test_ranks_that_exchange_nothing_know_no_rows_of_others(comm: str, variables: list[VariableInfo]) -> None:
    made = plan(*variables, comm=comm, lookahead=Lookahead.ONE)
    assert ahead(made) == []
    assert made.notes[-1].startswith("comm.lookahead=1 has no effect: it needs rows that have owners, and workers")


def test_no_gradient_is_sent_to_servers_behind_its_step() -> None:
    made = plan(DENSE, SPARSE, comm="hybrid", lookahead=Lookahead.ONE)
    assert ahead(made) == ["table"] and not any(variable.is_behind for variable in made.variables)


def test_all_ranks_tell_each_other_the_ids_of_rows_on_servers() -> None:
    off, on = (
        plan(DENSE, SPARSE, comm="hybrid", lookahead=each, workers=3).variables[1].sent_bytes_per_step or 0
        for each in (Lookahead.OFF, Lookahead.ONE)
    )
    assert on - off == 50 * 8 * 2


def test_not_if_it_is_off_nor_with_several_replicas_nor_in_a_script() -> None:
    off = plan(SPARSE, OTHER, comm="sharded", lookahead=Lookahead.OFF)
    assert ahead(off) == [] and off.notes == ()
    for comm, lookahead in (("hybrid", Lookahead.ONE), ("sharded", Lookahead.AUTO)):
        script = plan(DENSE, SPARSE, comm=comm, spans_hosts=True, lookahead=lookahead, script_runs_steps=True)
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
    assert ahead(plan(SPARSE, comm="sharded", lookahead=Lookahead.ONE)) == ["table"]


def test_to_ask_for_it_in_vain_is_told() -> None:
    (note,) = plan(DENSE, comm="sharded", lookahead=Lookahead.ONE).notes[1:]
    assert note == (
        "comm.lookahead=1 has no effect: it needs rows that have owners, and workers that exchange other gradients "
        "among themselves"
    )
    assert plan(SPARSE, comm="sharded", lookahead=Lookahead.ONE).notes == ()


def test_a_byte_for_each_id_says_when_its_row_comes_and_another_when_its_gradient_goes() -> None:
    tied = info("table", "sparse", tied_rows="the update's op «norm» (L2Loss) needs all rows of a step")
    off, ahead_only, both = (
        plan(variable, comm="sharded", lookahead=each).variables[0].sent_bytes_per_step or 0
        for variable, each in ((SPARSE, Lookahead.OFF), (tied, Lookahead.ONE), (SPARSE, Lookahead.ONE))
    )
    # Of 50 ids half are the other rank's.
    assert (ahead_only - off, both - ahead_only) == (50 // 2, 50 // 2)


def test_gradients_go_behind_the_step_unless_the_update_needs_all_of_them() -> None:
    tied = info("tied", "sparse", tied_rows="the update's op «norm» (L2Loss) needs all rows of a step")
    made = plan(SPARSE, tied, OTHER, comm="sharded", lookahead=Lookahead.ONE)
    assert [variable.name for variable in made.variables if variable.is_behind] == ["table"]
    assert made.notes[1] == (
        "all gradients of «tied» are sent within their step: the update's op «norm» (L2Loss) needs all rows of a step"
    )
    for lookahead in (Lookahead.OFF, Lookahead.AUTO):  # it does not pay in what was measured
        other = plan(SPARSE, tied, comm="sharded", lookahead=lookahead, spans_hosts=True)
        assert not other.variables[0].is_behind and other.notes == ()
