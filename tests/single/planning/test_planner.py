"""The planner's routes, shards, notes and predictions, from hand-made variables: no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.errors import PlanError
from parallax_runner.plan import plan as plans
from parallax_runner.plan.comm_options import CommOptions, Compression, PsOptions
from parallax_runner.plan.plan import Plan, Route, Shard
from parallax_runner.planning.cost.measured import Measured, RowStatistics
from parallax_runner.planning.cost.sent_bytes import predict_sent_bytes
from parallax_runner.planning.cut import Cut
from parallax_runner.routes.registry import lengths_vary, may_fuse, uses_collectives
from tests.single.plans import plan_of, with_options


def info(name: str, kind: str, shape: tuple[int, ...] = (100, 10), **more: object) -> VariableInfo:
    fields = {
        "full_name": name,
        "pieces": 1,
        "dtype": "float32",
        "itemsize": 4,
        "gradient_rows": 50 if kind == "sparse" else None,
        "slots": (),
    }
    return VariableInfo(name=name, shape=shape, gradient=GradientKind(kind), **(fields | more))  # type: ignore[arg-type]


DENSE, SPARSE, NONE = info("kernel", "dense"), info("table", "sparse"), info("global_step", "none", ())


def plan(*variables: VariableInfo, **fields: Any) -> Plan:
    return plan_of(variables, **fields)


def routes(made: Plan) -> dict[str, str]:
    return {variable.name: variable.route for variable in made.variables}


@pytest.mark.parametrize("comm", ["mpi", "hybrid", "sharded"])
@pytest.mark.parametrize("kind", ["dense", "none"])
def test_a_dtype_that_ranks_cannot_send_is_refused(comm: str, kind: str) -> None:
    odd, remedy = info("odd", kind, dtype="complex64"), "local" if kind == "dense" else "ps"
    with pytest.raises(PlanError, match=rf"comm={comm}: variable «odd» has dtype complex64.* choose comm={remedy},"):
        plan(odd, DENSE, comm=comm)
    assert plan(odd, DENSE, comm=remedy).variables[0].dtype == "complex64"


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_dtype_that_servers_cannot_add_up_is_refused(kind: str) -> None:
    odd = info("odd", kind, dtype="complex64")
    with pytest.raises(PlanError, match=r"comm=ps: variable «odd» has dtype complex64, .* choose comm=local,"):
        plan(odd, DENSE, comm="ps")
    assert plan(odd, DENSE, comm="ps", sync=False).variables[0].route == Route.PS  # nothing is added up


@pytest.mark.parametrize("comm", ["mpi", "ps", "hybrid", "sharded"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "none"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numbers_of_16_bits_go_by_every_route(comm: str, kind: str, dtype: str) -> None:
    assert plan(info("short", kind, dtype=dtype), SPARSE, comm=comm).variables[0].dtype == dtype


@pytest.mark.parametrize(
    ("comm", "dense", "sparse", "servers", "collectives"),
    [
        ("local", "local", "local", 0, False),
        ("mpi", "allreduce", "allgather", 0, True),
        ("ps", "ps", "ps", 2, False),
        ("hybrid", "allreduce", "ps", 2, True),
    ],
)
def test_a_preset_routes_by_kind(comm: str, dense: str, sparse: str, servers: int, collectives: bool) -> None:
    made = plan(DENSE, SPARSE, NONE, comm=comm)
    assert routes(made) == {"kernel": dense, "table": sparse, "global_step": "local"}
    assert [variable.name for variable in made.variables] == ["kernel", "table", "global_step"]
    assert made.servers == servers
    assert uses_collectives(made) is collectives
    assert {v.name for v in made.variables if v.shards} == {v.name for v in made.by_route(Route.PS)}
    assert made.notes == ()
    assert all(variable.reason for variable in made.variables)


@pytest.mark.parametrize(
    ("comm", "varies"), [("local", False), ("mpi", True), ("ps", False), ("hybrid", False), ("sharded", True)]
)
def test_lengths_vary_where_rows_travel_among_ranks(comm: str, varies: bool) -> None:
    made = plan(DENSE, SPARSE, NONE, comm=comm)
    assert lengths_vary(made) is varies
    assert may_fuse(made) is (comm == "mpi")
    assert not lengths_vary(with_options(made, use_allgatherv=True)) or comm == "sharded"


def test_lengths_are_fixed_where_all_variables_are_dense() -> None:
    made = plan(DENSE, NONE, comm="mpi")
    assert not lengths_vary(made) and not may_fuse(made)


def test_hybrid_without_sparse_variables_is_mpi() -> None:
    made = plan(DENSE, NONE)
    assert routes(made) == {"kernel": "allreduce", "global_step": "local"}
    assert (made.servers, uses_collectives(made)) == (0, True)
    assert [note for note in made.notes if "no sparse variable" in note and "mpi" in note]


def test_hybrid_without_dense_variables_is_ps() -> None:
    made = plan(SPARSE, NONE)
    assert routes(made) == {"table": "ps", "global_step": "local"}
    assert (made.servers, uses_collectives(made)) == (2, False)
    assert [note for note in made.notes if "no dense variable" in note and "ps" in note]


def test_no_note_says_what_a_variable_makes_untrue() -> None:
    """One that its scope puts on a server, and one that no server can hold."""
    named = plan(info("kernel", "dense", server=0), comm="hybrid")
    assert named.servers and not [note for note in named.notes if "hybrid is mpi" in note]
    kept = plan(info("table", "sparse", immovable_op="cond"), comm="hybrid")
    assert uses_collectives(kept) and not [note for note in kept.notes if "hybrid is ps" in note]


def test_other_modes_have_no_such_note() -> None:
    assert plan(DENSE, comm="mpi").notes == plan(SPARSE, comm="ps").notes == ()


def test_partitions_that_split_nothing_are_noted() -> None:
    (note,) = plan(DENSE, SPARSE, comm="mpi", partitions=4).notes
    assert "partition.num=4" in note
    assert plan(DENSE, SPARSE, partitions=4).notes == ()


def test_partitions_under_ps_without_sparse_variables_are_noted() -> None:
    (note,) = plan(DENSE, comm="ps", partitions=4).notes
    assert "partition.num=4" in note


def test_an_op_that_sees_merged_rows_is_noted() -> None:
    made = plan(DENSE, info("table", "sparse", nonlinear_op="norm"), NONE, comm="local")
    (note,) = made.notes
    assert note.startswith(
        "the update of «table» is not linear in the sparse gradient (first nonlinear op: «norm»): in every mode, rows "
        "with the same id "
    )
    assert made.differ_unmerged == ("table",)


def test_updates_that_a_norm_over_a_sparse_gradient_scales_are_noted() -> None:
    table, scaled = (info(name, kind, nonlinear_op="norm") for name, kind in (("table", "sparse"), ("w", "dense")))
    (note,) = plan(table, scaled, NONE, comm="local").notes
    assert note.startswith("the update of «table» and every variable with a dense gradient is not linear")
    (note,) = (made := plan(DENSE, table, scaled, comm="local")).notes
    assert note.startswith("the update of «table», «w» is not linear")
    assert made.differ_unmerged == ("table", "w")


def test_only_sparse_variables_are_split() -> None:
    made = plan(DENSE, SPARSE, NONE, comm="ps", partitions=4)
    kernel, table, step = made.variables
    assert [(shard.offset, shard.rows, shard.step) for shard in table.shards] == [(n, 25, 4) for n in range(4)]
    assert [(shard.offset, shard.rows) for shard in kernel.shards] == [(0, 100)]
    assert step.shards == ()
    assert [v.partitions for v in made.variables] == [1, 4, 1]


def large(name: str, rows: int = 1000, **more: Any) -> VariableInfo:
    """A dense variable of 400 kB."""
    return info(name, "dense", (rows, 100_000 // rows), **{"is_updated_in_parts": True} | more)


def test_a_dense_variable_that_would_keep_its_server_busier_than_others_is_cut() -> None:
    made = plan(large("kernel"), info("bias", "dense", (10,)), comm="ps", servers=4)
    assert [(shard.offset, shard.rows, shard.step) for shard in made.variables[0].shards] == [
        (0, 334, 3),  # no shard is smaller than 128 kB
        (1, 333, 3),
        (2, 333, 3),
    ]
    assert len({shard.server for shard in made.variables[0].shards}) == 3
    assert made.variables[1].partitions == 1


def test_a_dense_variable_is_whole_where_cutting_does_not_help() -> None:
    alone = [large("kernel", rows=2), large("tied", is_updated_in_parts=False), large("named", server=0)]
    for variable, pieces in zip(alone, (2, 1, 1), strict=True):
        assert plan(variable, comm="ps", servers=4).variables[0].partitions == pieces  # no more pieces than rows
    many = plan(*(large(f"kernel_{number}") for number in range(9)), comm="ps", servers=4)
    assert {variable.partitions for variable in many.variables} == {1}  # each is less than half of a server's share
    assert plan(large("kernel"), comm="ps", servers=1).variables[0].partitions == 1


def test_slots_are_held_beside_the_rows() -> None:
    """Without its slots the slotted one would have the narrow one beside it."""
    slotted = info("slotted", "dense", (30,), slots=tuple("abcd"))  # 150 numbers in all
    wide, narrow = info("wide", "dense", (60,)), info("narrow", "dense", (20,))
    made = plan(slotted, wide, narrow, comm="ps")
    assert {v.name: v.shards for v in made.variables} == {
        "wide": (Shard(0, 60, server=0),),
        "slotted": (Shard(0, 30, server=1),),
        "narrow": (Shard(0, 20, server=0),),
    }


def test_a_table_counts_by_the_rows_that_a_step_asks_for() -> None:
    """By all it holds it had a server to itself, and the kernels, which each step moves whole, shared the other."""
    table = info("table", "sparse", (100, 10), gradient_rows=5)
    kernels = [info(name, "dense", (40, 10)) for name in ("one", "other")]
    made = plan(table, *kernels, comm="ps")
    assert [v.shards[0].server for v in made.variables] == [0, 0, 1]


def test_a_server_that_holds_much_more_for_the_sake_of_steps_is_named() -> None:
    """Halves of two tables and a kernel that every step moves whole: it has a server with one half beside it."""
    tables = [info(name, "sparse", (10_000_000, 10), gradient_rows=5_000) for name in ("one", "other")]
    kernel = info("kernel", "dense", (40_000, 10))
    (note,) = plan(*tables, kernel, comm="ps", partitions=2).notes
    assert note.startswith("server 1 holds 600 MB of 802 MB") and note.endswith("more pieces may balance both")
    assert plan(*tables, comm="ps", partitions=2).notes == ()
    assert plan(tables[0], kernel, comm="ps").notes == ()  # nothing else would be more even


def test_tables_that_workers_read_whole_are_placed_by_all_their_rows() -> None:
    """The largest has few rows asked for; where lookups are on the worker all of it is pulled, and it stays alone."""
    tables = [
        info("large", "sparse", (1_000, 10), gradient_rows=5),
        info("middle", "sparse", (600, 10), gradient_rows=100),
        info("small", "sparse", (500, 10), gradient_rows=100),
    ]

    def servers(*, boundary: bool) -> list[int]:
        made = plan(*tables, comm="ps", ps=PsOptions(boundary_between_workers_and_servers=boundary))
        return [variable.shards[0].server for variable in made.variables]

    large, middle, small = servers(boundary=False)
    assert large != middle == small
    assert servers(boundary=True) == [1, 0, 1]


def test_adding_up_at_the_worker_has_nothing_to_do_for_one_replica() -> None:
    def notes(replicas: int, *, sync: bool = True) -> tuple[str, ...]:
        options = PsOptions(local_aggregation=False)
        return plan(DENSE, comm="ps", servers=1, replicas_per_worker=replicas, ps=options, sync=sync).notes

    assert notes(2, sync=False) == ("comm.ps.local_aggregation=false has no effect: each replica pushes immediately",)
    assert notes(1) == ("comm.ps.local_aggregation=false has no effect: a worker has one replica",)
    assert notes(2) == ()


def test_that_gloo_is_slower_is_noted_where_ranks_exchange_something() -> None:
    def notes(**fields: Any) -> tuple[str, ...]:
        return tuple(note for note in plan(DENSE, SPARSE, **fields).notes if "slower than MPI" in note)

    assert len(notes(comm="hybrid", without_mpirun=True)) == len(notes(comm="sharded", without_mpirun=True)) == 1
    assert (
        notes(comm="hybrid")
        == notes(comm="ps", without_mpirun=True)
        == notes(comm="mpi", without_mpirun=True, workers=1)
        == ()
    )


def test_a_scalar_on_a_server_is_one_row() -> None:
    (variable,) = plan(info("scale", "dense", ()), comm="ps").variables
    assert variable.shards == (Shard(0, 1, server=0),)
    assert variable.size_bytes == 4


@pytest.mark.parametrize(("partitions", "each"), [(1, 1), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_the_users_own_pieces_count_towards_partitions(partitions: int, each: int) -> None:
    pieces = [info(f"table/part_{n}", "sparse", full_name="table", pieces=3) for n in range(3)]
    made = plan(*pieces, partitions=partitions)
    assert [variable.partitions for variable in made.variables] == [each] * 3


def test_a_table_with_fewer_rows_gets_as_many_partitions_as_rows() -> None:
    made = plan(SPARSE, info("few", "sparse", (3, 4)), partitions=4)
    assert [variable.partitions for variable in made.variables] == [4, 3]


def test_the_users_pieces_of_a_small_table_count_towards_its_rows() -> None:
    pieces = [info(f"few/part_{n}", "sparse", (3, 4), full_name="few", pieces=2) for n in range(2)]
    for partitions in (6, 7, 100):
        assert [v.partitions for v in plan(*pieces, partitions=partitions).variables] == [3, 3]


def test_a_partitioner_that_requests_more_pieces_than_rows_is_refused() -> None:
    with pytest.raises(PlanError, match="«few» requests 4 pieces, but the variable has 3 rows") as caught:
        plan(info("few", "sparse", (3, 4), min_partitions=4))
    assert caught.value.exit_status == 2


def test_partitions_do_not_matter_where_nothing_is_split() -> None:
    for comm, kind in (("mpi", "sparse"), ("ps", "dense")):
        made = plan(info("few", kind, (3, 4)), comm=comm, partitions=4)
        assert made.variables[0].partitions == 1
        assert "partition.num=4 has no effect: no sparse variable is on a server" in made.notes


# A dense variable of 100 × 10 float32 is 4000 bytes. A sparse gradient of 50 rows of 10 float32 with an id of 8 bytes
# each is 50 × 48 = 2400 bytes.
@pytest.mark.parametrize(
    ("variable", "route", "two", "eight"),
    [
        (DENSE, Route.ALLREDUCE, 4000, 7000),  # 2 (N - 1) / N of it
        (DENSE, Route.PS, 8000, 8000),  # up and down
        (SPARSE, Route.ALLGATHER, 2400, 16800),  # to N - 1 others
        (SPARSE, Route.PS, 4800, 4800),  # rows up, rows down
        (DENSE, Route.LOCAL, 0, 0),
        (SPARSE, Route.LOCAL, 0, 0),
        (NONE, Route.LOCAL, 0, 0),
    ],
)
def test_predicted_traffic(variable: VariableInfo, route: Route, two: int, eight: int) -> None:
    assert predict_sent_bytes(variable, route, 2, CommOptions()) == two
    assert predict_sent_bytes(variable, route, 8, CommOptions()) == eight


@pytest.mark.parametrize("route", [Route.ALLGATHER, Route.PS])
def test_traffic_is_unknown_where_the_number_of_ids_is(route: Route) -> None:
    unknown = info("table", "sparse", gradient_rows=None)
    assert predict_sent_bytes(unknown, route, 2, CommOptions()) is None


def test_one_worker_allreduces_nothing() -> None:
    assert plan(DENSE, SPARSE, comm="mpi", workers=1).sent_bytes_per_step == 0


def test_traffic_adds_up() -> None:
    assert plan(DENSE, SPARSE, NONE).sent_bytes_per_step == 4000 + 4800
    assert plan(DENSE, info("table", "sparse", gradient_rows=None)).sent_bytes_per_step is None


def test_a_variable_knows_its_bytes() -> None:
    variable = info("v", "dense", (7, 3, 2), itemsize=8)
    assert (variable.size_bytes, variable.row_bytes) == (7 * 3 * 2 * 8, 3 * 2 * 8)
    scalar = info("s", "dense", ())
    assert (scalar.size_bytes, scalar.row_bytes) == (4, 4)


@pytest.mark.parametrize("comm", ["local", "mpi", "ps", "hybrid"])
def test_a_plan_comes_back_from_its_file(comm: str, tmp_path: Path) -> None:
    table = info("table", "sparse", slots=("table/Adagrad",), nonlinear_op="norm")
    unknown = info("unknown", "sparse", gradient_rows=None)
    made = plan(DENSE, table, unknown, NONE, comm=comm, partitions=3)
    plans.save(made, tmp_path / "plan.json")
    read = plans.load(tmp_path / "plan.json")
    assert read == made
    assert read.by_route(Route.PS) == made.by_route(Route.PS)
    assert hash(read) == hash(made)  # All the way down tuples, not lists.


def test_options_stand_among_the_fields_of_the_file_and_come_back(tmp_path: Path) -> None:
    options = CommOptions(
        average_sparse=False,
        ps=PsOptions(local_aggregation=False),
        compression=Compression.BF16,
        sync=False,
        staleness=3,
    )
    made = dataclasses.replace(plan(DENSE, SPARSE, comm="ps"), options=options)
    plans.save(made, tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert {name: written[name] for name in ("sync", "staleness", "compression")} == {
        "sync": False,
        "staleness": 3,
        "compression": "bf16",
    }
    assert "options" not in written and written["ps"]["local_aggregation"] is False
    assert plans.load(tmp_path / "plan.json") == made


@pytest.mark.parametrize("comm", ["hybrid", "sharded"])
def test_a_variable_that_is_used_in_a_branch_stays_whole_on_all_ranks(comm: str) -> None:
    made = plan(info("table", "sparse", immovable_op="cond"), DENSE, comm=comm)
    assert made.variables[0].route == Route.ALLGATHER
    assert made.servers == 0
    assert any("«table»" in note and "«cond»" in note for note in made.notes)


def test_under_ps_it_is_refused_with_the_op_and_the_remedy() -> None:
    kernel = info("kernel", "dense", immovable_op="while")
    with pytest.raises(PlanError, match=r"«kernel».*«while».*comm=hybrid or comm=mpi"):
        plan(kernel, comm="ps")


def test_a_scope_that_names_a_server_goes_before_the_preset() -> None:
    made = plan(info("kernel", "dense", server=1), info("table", "sparse", server=1), comm="hybrid", partitions=2)
    assert routes(made) == {"kernel": "ps", "table": "ps"}
    assert {shard.server for variable in made.variables for shard in variable.shards} == {1}
    assert {variable.reason for variable in made.variables} == {"the variable's device scope names /job:ps/task:1"}


def test_a_scope_that_names_a_server_cannot_move_what_each_rank_keeps() -> None:
    made = plan(DENSE, SPARSE, info("global_step", "none", (), server=0), comm="ps")
    assert routes(made)["global_step"] == "local"
    assert any("the device scope of «global_step» names" in note and "/job:ps/task:0" in note for note in made.notes)


def test_copies_of_nothing_are_noted() -> None:
    def notes(comm: str) -> tuple[str, ...]:
        return plan(DENSE, SPARSE, comm=comm, servers=1, ps=PsOptions(replicate_variables=True)).notes

    assert not any("replicate_variables" in note for note in notes("ps"))
    assert any("replicate_variables=true has no effect" in note for note in notes("hybrid"))


def test_without_the_boundary_a_whole_table_travels() -> None:
    options = CommOptions(ps=PsOptions(boundary_between_workers_and_servers=False))
    assert predict_sent_bytes(SPARSE, Route.PS, 2, options) == 50 * (40 + 8) + 4000


def test_tables_that_are_touched_most_are_on_different_servers() -> None:
    """Of 4 tables of a size the first and the third have nearly all touches."""
    tables = [dataclasses.replace(SPARSE, name=name) for name in ("a", "b", "c", "d")]
    touched = {"a": 48, "b": 2, "c": 48, "d": 2}
    rows = tuple(RowStatistics(name, 100, ids=50, distinct=n, merged=60, samples=2) for name, n in touched.items())
    measured = Measured("f", 2, 1, 0.1, 8, None, tuple(tables), rows, "2026-01-01")

    def servers(measured: Measured | None, partitions: int = 1) -> list[int]:
        made = plan(*tables, comm="ps", partitions=partitions, measured=measured)
        return [shard.server for variable in made.variables for shard in variable.shards]

    assert servers(None) == [0, 1, 0, 1]
    first, _, third, _ = placed = servers(measured)
    assert first != third
    assert sorted(placed) == [0, 0, 1, 1]
    assert [sorted(servers(measured, 2)[start : start + 2]) for start in (0, 2, 4, 6)] == [[0, 1]] * 4


def by_bytes(*variables: VariableInfo, partitions: int) -> dict[str, int]:
    made = plan(*variables, servers=4, partitions=partitions, cut=Cut.BY_BYTES)
    return {variable.name: variable.partitions for variable in made.variables}


def test_shards_of_a_search_have_about_equal_bytes() -> None:
    large, half, small = (info(name, "sparse", (rows, 10)) for name, rows in (("l", 800), ("h", 400), ("s", 20)))
    assert by_bytes(large, half, small, DENSE, partitions=8) == {"l": 8, "h": 4, "s": 1, "kernel": 1}
    assert by_bytes(large, half, small, partitions=1) == {"l": 1, "h": 1, "s": 1}
    assert by_bytes(large, half, small, partitions=80) == {"l": 80, "h": 40, "s": 2}


def test_a_small_variable_is_never_cut_into_more_pieces_than_rows() -> None:
    wide = info("wide", "sparse", (3, 1000))
    assert by_bytes(wide, info("long", "sparse", (1000, 4)), partitions=64) == {"wide": 3, "long": 64}


def test_a_search_leaves_a_script_the_pieces_that_it_wants() -> None:
    marked = [info(f"m{rows}", "sparse", (rows, 10), min_partitions=2) for rows in (800, 40)]
    assert by_bytes(*marked, info("other", "sparse", (900, 10)), partitions=8) == {"m800": 8, "m40": 2, "other": 1}


def test_a_search_counts_the_users_own_pieces() -> None:
    pieces = [info(f"table/part_{n}", "sparse", (100, 10), full_name="table", pieces=3) for n in range(3)]
    small = info("small", "sparse", (150, 10))
    assert by_bytes(*pieces, small, partitions=12) == {**{piece.name: 4 for piece in pieces}, "small": 6}
