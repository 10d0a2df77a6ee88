"""Plans with which a vocabulary would grow differently than on one device are refused, with the reason and remedy.
Presets leave such vocabularies to the ranks (parallax_runner.planning.preset)."""

from __future__ import annotations

import dataclasses

import pytest

from parallax_runner.analysis.variable_info import GradientKind, GrowingTable
from parallax_runner.errors import PlanError
from parallax_runner.plan.comm_options import Lookahead
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.choose import choose_routes
from parallax_runner.planning.cost.constants import DEFAULTS
from parallax_runner.planning.cost.model import Cluster, CostModel
from parallax_runner.planning.cost.server_load import ServerLoad
from parallax_runner.planning.cut import Cut
from parallax_runner.planning.explain import explain
from parallax_runner.planning.growing import check_growing
from tests.single.planning.test_planner import DENSE, SPARSE, info, routes
from tests.single.plans import plan_of

GROWING = dataclasses.replace(SPARSE, grows=True)
STATIC = info("words", "sparse")
TABLE = GrowingTable("users", SPARSE.name, ("keys", "index", "fill", "overflow"), places=2, has_overflow_rows=False)


def plan(comm: str, *, workers: int = 2, lookahead: Lookahead = Lookahead.AUTO) -> Plan:
    made = plan_of([GROWING], comm=comm, workers=workers)
    return dataclasses.replace(made, options=dataclasses.replace(made.options, lookahead=lookahead))


def test_owners_of_keys_may_grow() -> None:
    (note,) = check_growing([TABLE], plan("sharded"), [GROWING])
    assert "«users» grows" in note
    assert "rank = bucket mod 2" in note
    assert check_growing([TABLE], plan("local", workers=1), [GROWING]) == ()
    assert check_growing([], plan("mpi"), [GROWING]) == ()


@pytest.mark.parametrize("comm", ["mpi", "ps"])
def test_other_modes_are_refused(comm: str) -> None:
    with pytest.raises(PlanError, match=f"comm={comm}: the vocabulary of «users».*choose comm=sharded or comm=hybrid"):
        check_growing([TABLE], plan(comm), [GROWING])


def test_a_hybrid_plan_has_two_kinds_of_owners() -> None:
    """A device scope that names a server does not move a vocabulary that grows there."""
    named = dataclasses.replace(GROWING, server=1)
    for growing in (GROWING, named):
        made = plan_of([growing, STATIC, DENSE], partitions=2)
        assert routes(made) == {"table": "alltoall", "words": "ps", "kernel": "allreduce"}
        table, words, _ = made.variables
        assert (table.shards, len(words.shards), made.servers) == ((), 2, 2)
        assert table.reason == "the vocabulary grows, so the ranks own its keys and rows"
        (note,) = check_growing([TABLE], made, [growing, STATIC, DENSE])
        assert "rank = bucket mod 2" in note
    assert any("names /job:ps/task:1, but the variable stays with the ranks" in note for note in made.notes)


def test_a_vocabulary_that_grows_does_not_decide_how_finely_tables_on_servers_are_cut() -> None:
    large = dataclasses.replace(GROWING, shape=(100_000, 10))
    _, words = plan_of([large, STATIC], partitions=2, cut=Cut.BY_BYTES).variables
    assert len(words.shards) == 2


def test_hybrid_starts_no_server_if_all_tables_grow() -> None:
    made = plan_of([GROWING, DENSE])
    assert (routes(made), made.servers) == ({"table": "alltoall", "kernel": "allreduce"}, 0)
    told = "no sparse variable is on a server, because vocabularies grow on the ranks: no server is started"
    assert told in made.notes


@pytest.mark.parametrize("comm", ["hybrid", "sharded", "mpi"])
def test_a_table_that_no_choice_of_comm_can_spread_is_refused_with_the_reason(comm: str) -> None:
    """The user may have chosen comm=hybrid or comm=sharded already, so these are no remedy."""
    fixed = dataclasses.replace(GROWING, immovable_op="inside/Gather", immovable_because="uses it in a branch")
    dense = dataclasses.replace(GROWING, gradient=GradientKind.DENSE)
    for variable, use in ((fixed, "«inside/Gather» uses it in a branch"), (dense, "its gradient is dense")):
        with pytest.raises(
            PlanError, match=f"comm={comm}: .*no rank can own its keys.*{use}.*or choose comm=local"
        ) as told:
            check_growing([TABLE], plan_of([variable, STATIC, DENSE], comm=comm), [variable, STATIC, DENSE])
        assert "comm=sharded or" not in str(told.value)


def test_a_script_may_not_look_up_keys() -> None:
    for comm, workers in (("hybrid", 2), ("sharded", 2)):
        with pytest.raises(PlanError, match=f"comm={comm}: .*only all ranks together can look up keys.*comm=local"):
            check_growing([TABLE], plan(comm, workers=workers), [GROWING], script_runs_steps=True)
    check_growing([TABLE], plan("local", workers=1), [GROWING], script_runs_steps=True)


@pytest.mark.parametrize("servers", [0, 2])
def test_auto_leaves_vocabularies_that_grow_to_the_ranks(servers: int) -> None:
    """The cheapest routes of the others are those without it; if the rows of all others are on servers, too."""
    few_rows = dataclasses.replace(GROWING, shape=(8, 2))  # hardly more than a dense variable
    model = CostModel(Cluster(2, servers), DEFAULTS)
    choice = choose_routes([few_rows, STATIC, DENSE], model)
    assert choice.routes["table"] == "alltoall"
    assert choice.reasons["table"] == "the vocabulary grows, so the ranks own its keys and rows"
    assert {choice.routes["words"], choice.routes["kernel"]} <= {"allreduce", "allgather", "ps", "alltoall"}
    others = choose_routes([STATIC, DENSE], model)
    slow_ranks = dataclasses.replace(DEFAULTS, alltoall=dataclasses.replace(DEFAULTS.alltoall, secs_per_byte=1.0))
    on_servers = choose_routes([few_rows, STATIC, DENSE], CostModel(Cluster(2, servers), slow_ranks))
    assert on_servers.routes["table"] == "alltoall"
    assert on_servers.routes["words"] != "alltoall"
    assert set(others.routes) == {"words", "kernel"}
    made = plan_of([few_rows, STATIC, DENSE], comm="auto", servers=servers, choice=choice)
    explained = explain(made, [few_rows, STATIC, DENSE], model)
    assert [cost.route for cost in explained.variables[0].costs] == ["alltoall"]
    check_growing([dataclasses.replace(TABLE, variable="table")], explained, [few_rows, STATIC, DENSE])


def test_servers_have_no_load_of_vocabularies_that_grow() -> None:
    loads = [ServerLoad.of(variables, 2, None, DEFAULTS, together=False) for variables in ([STATIC], [STATIC, GROWING])]
    assert loads[0] == loads[1]


def test_slots_that_would_keep_values_of_other_keys_are_refused() -> None:
    evicting = dataclasses.replace(TABLE, unused_steps=3, every_steps=2)
    made = plan("sharded")
    (rows,) = made.variables
    with_slot = dataclasses.replace(made, variables=(dataclasses.replace(rows, slots=("accumulator",)),))
    with pytest.raises(PlanError, match=r"its slot «accumulator» would keep the values of another key.*set_optimizer"):
        check_growing([dataclasses.replace(evicting, renewed=())], with_slot, [GROWING])
    check_growing([dataclasses.replace(evicting, renewed=("accumulator",))], with_slot, [GROWING])
    with pytest.raises(PlanError, match="the update does not use «column_sums» row by row"):
        check_growing([dataclasses.replace(evicting, renewed=("accumulator", "column_sums"))], with_slot, [GROWING])
    check_growing([TABLE], with_slot, [GROWING])


def test_lookahead_is_refused() -> None:
    with pytest.raises(PlanError, match=r"comm.lookahead=on: .*choose comm.lookahead=auto"):
        check_growing([TABLE], plan("sharded", lookahead=Lookahead.ON), [GROWING])
    check_growing([TABLE], plan("sharded", lookahead=Lookahead.OFF), [GROWING])
