"""Which variables a plan asks for ahead, and what it says of others."""

from __future__ import annotations

from parallax_runner.plan.comm_options import Lookahead
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


def test_not_if_it_is_off_nor_by_another_route_nor_with_several_replicas() -> None:
    off = plan(SPARSE, OTHER, comm="sharded", lookahead=Lookahead.OFF)
    assert ahead(off) == [] and off.notes == ()
    for comm in ("hybrid", "mpi"):
        assert ahead(plan(DENSE, SPARSE, comm=comm, spans_hosts=True)) == []
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
    (note,) = plan(DENSE, SPARSE, comm="hybrid", lookahead=Lookahead.ONE).notes
    assert note == "comm.lookahead=1 has no effect: no rows are spread over the ranks"
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
