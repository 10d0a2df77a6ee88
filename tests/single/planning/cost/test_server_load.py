"""What the busiest server has, and which server has hot shards."""

from __future__ import annotations

import dataclasses

import pytest

from parallax_runner.analysis.variable_info import GradientKind, VariableInfo
from parallax_runner.plan.comm_options import PsOptions
from parallax_runner.plan.plan import Shard
from parallax_runner.planning.cost.constants import DEFAULTS
from parallax_runner.planning.cost.measured import Measured, RowStatistics
from parallax_runner.planning.cost.server_load import ServerLoad
from parallax_runner.planning.cut import Cut, cut_variables
from parallax_runner.planning.placement import place, rows_matter, served_bytes
from tests.single.planning.test_planner import info, plan

LARGE, SMALL = info("large", "sparse", (600, 10)), info("small", "sparse", (200, 10))
KERNEL = info("kernel", "dense", (400, 10))


def counted(variable: VariableInfo, distinct: float, hot: tuple[tuple[int, int], ...] = ()) -> RowStatistics:
    rows = variable.shape[0]
    return RowStatistics(variable.name, rows, ids=distinct, distinct=distinct, merged=distinct, samples=10, hot=hot)


def measured(*rows: RowStatistics) -> Measured:
    return Measured("f", 2, 5, 0.1, 8, None, (), rows, "2026-01-01")


def load(*variables: VariableInfo, partitions: int = 1, together: bool = False) -> ServerLoad:
    return ServerLoad.of(cut_variables(variables, partitions, Cut.ALIKE), 2, None, DEFAULTS, together=together)


def test_the_busiest_server_has_the_largest_variable() -> None:
    wide = info("wide", "sparse", (200, 30))
    of_wide, of_small = 2 * (4 * 30 + 8), 2 * (4 * 10 + 8)  # a row each way, with its number
    assert load(wide, SMALL).busiest_share[GradientKind.SPARSE] == pytest.approx(of_wide / (of_wide + of_small))
    assert load(wide, SMALL, partitions=2).busiest_share[GradientKind.SPARSE] == pytest.approx(0.5)
    assert load(LARGE, SMALL, partitions=3).shards == {"large": 3, "small": 3}


def test_kinds_are_placed_apart_or_as_a_plan_places_them_together() -> None:
    """Two dense ones have a server each, and the table, of which a step asks for a little less, lands beside one."""
    variables = [info("one", "dense"), info("other", "dense"), info("table", "sparse", gradient_rows=80)]
    apart, together = load(*variables), load(*variables, together=True)
    assert apart.busiest_share == {GradientKind.DENSE: 0.5, GradientKind.SPARSE: 1.0}
    share = together.busiest_share[GradientKind.SPARSE]
    assert share == together.busiest_share[GradientKind.DENSE]
    # Two of three, and rows are some work beside their bytes.
    assert 0.65 < share < 0.9
    placed = {one.name: one.shards[0].server for one in plan(*variables, comm="ps").variables}
    assert placed == {"one": 0, "other": 1, "table": 0}


def test_what_cannot_be_on_a_server_makes_none_busy() -> None:
    fixed = dataclasses.replace(info("fixed", "sparse", (10_000, 10)), immovable_op="cond/Gather")
    assert load(SMALL, dataclasses.replace(SMALL, name="other"), fixed).busiest_share[GradientKind.SPARSE] == 0.5


def test_without_a_measurement_a_table_serves_the_rows_that_are_asked_for_however_many_it_has() -> None:
    assert load(info("vast", "sparse", (1_000_000, 10)), SMALL).busiest_share[GradientKind.SPARSE] == 0.5


def test_more_pieces_than_rows_are_rows() -> None:
    assert load(info("few", "sparse", (3, 10)), partitions=8).shards == {"few": 3}


def test_a_shard_serves_its_hot_rows_as_often_as_they_are_touched() -> None:
    """Rows 0 and 2 are touched in each of 10 batches, row 1 in 5, and one of the 97 others."""
    table = info("table", "sparse", (100, 10))
    found = measured(counted(table, 3.5, hot=((0, 10), (2, 10), (1, 5))))
    shards = [Shard(0, 50, 0, 2), Shard(1, 50, 0, 2)]
    row_bytes = 2 * (table.row_bytes + 8)  # asked for and pulled, and pushed with its number
    rows = [size_bytes / row_bytes for size_bytes in served_bytes(table, shards, found, PsOptions())]
    assert rows == pytest.approx([2 + 48 / 97, 0.5 + 49 / 97])


def test_a_table_that_workers_read_whole_serves_all_its_rows() -> None:
    """Lookups on the worker: it pulls the table, and pushes what it touched."""
    table = info("table", "sparse", (100, 10), gradient_rows=10)
    shards = [Shard(0, 60, 0, 2), Shard(1, 40, 0, 2)]
    on_worker = served_bytes(table, shards, None, PsOptions(boundary_between_workers_and_servers=False))
    assert on_worker == pytest.approx([0.6 * (100 * 40 + 10 * 48), 0.4 * (100 * 40 + 10 * 48)])
    assert sum(served_bytes(table, shards, None, PsOptions())) == pytest.approx(10 * (8 + 40 + 48))
    found = measured(counted(table, 10.0, hot=tuple((row, 10) for row in range(0, 20, 2))))
    # All touched rows are of the first shard.
    shards = [Shard(0, 50, 0, 2), Shard(1, 50, 0, 2)]
    hot = served_bytes(table, shards, found, PsOptions(boundary_between_workers_and_servers=False))
    assert hot == pytest.approx([50 * 40 + 10 * 48, 50 * 40])


def test_the_busiest_server_is_that_of_the_lookups_that_are_configured() -> None:
    """Where workers look up, the large table has a server to itself, and the two others have the busiest."""
    rows = {"large": (1_000, 5), "middle": (600, 100), "small": (500, 100)}
    tables = [info(name, "sparse", (held, 10), gradient_rows=asked) for name, (held, asked) in rows.items()]
    variables = cut_variables(tables, 1, Cut.ALIKE)
    shares = [
        ServerLoad.of(variables, 2, None, DEFAULTS, together=True, ps=ps).busiest_share[GradientKind.SPARSE]
        for ps in (PsOptions(), PsOptions(boundary_between_workers_and_servers=False))
    ]
    assert shares[0] == pytest.approx(105 / 205)
    pulled_and_pushed = {name: held * 40 + asked * 48 for name, (held, asked) in rows.items()}
    busiest = pulled_and_pushed["middle"] + pulled_and_pushed["small"]
    assert shares[1] == pytest.approx(busiest / sum(pulled_and_pushed.values()))


def test_hot_shards_of_one_variable_do_not_share_a_server() -> None:
    """Of four shards of a table of few rows the first and the third are touched: bytes alone put them together."""
    table = dataclasses.replace(info("table", "sparse", (40, 10)), min_partitions=4)
    found = measured(counted(table, 8.0, hot=tuple((row, 10) for row in range(40) if row % 4 in (0, 2))[:8]))
    by_bytes, by_both = place([table], 2)["table"], place([table], 2, found)["table"]
    assert by_bytes[0].server == by_bytes[2].server
    assert by_both[0].server != by_both[2].server


def test_rows_matter_where_servers_have_other_shares_of_tables() -> None:
    assert rows_matter(plan(LARGE, SMALL))
    assert not rows_matter(plan(LARGE, SMALL, partitions=2))
    assert not rows_matter(plan(LARGE, SMALL, servers=1))
    assert not rows_matter(plan(LARGE, KERNEL))
    assert rows_matter(plan(LARGE, KERNEL, comm="ps", partitions=2))
    assert not rows_matter(plan(LARGE, KERNEL, comm="ps", servers=1))
    assert not rows_matter(plan(KERNEL, dataclasses.replace(KERNEL, name="other"), comm="ps"))
    assert not rows_matter(plan(LARGE, SMALL, comm="sharded"))
