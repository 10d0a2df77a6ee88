"""Simulations: the paper's story, what must hold for any measurement, and what is left behind."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from parallax_runner.config.frozen import from_plain
from parallax_runner.driver.run_simulation import _title
from parallax_runner.errors import PlanError
from parallax_runner.plan.comm_options import CommOptions, Lookahead
from parallax_runner.planning.cost import measured
from parallax_runner.planning.cost.constants import DEFAULTS
from parallax_runner.planning.cost.measured import Measured, RowStatistics
from parallax_runner.simulation import show
from parallax_runner.simulation.simulation import (
    Simulation,
    as_json,
    numbers_of_workers,
    shown_numbers,
    simulate,
    simulated_modes,
)
from tests.single.planning.cost.test_cost import BIG, touching
from tests.single.planning.test_planner import DENSE, info

COMMS = ("mpi", "ps", "hybrid", "sharded", "auto")
PAPER = Path(__file__).parents[3] / "benchmarks" / "profiles" / "parallax_lm.json"


def simulated(
    found: Measured, *, workers: int, per_host: int = 1, gbit: float = 10, latency_us: float = 20
) -> Simulation:
    constants = DEFAULTS.with_link(gbit_per_sec=gbit, latency_us=latency_us)
    return simulate(found, constants, workers=workers, workers_per_host=per_host, options=CommOptions())


def test_every_choice_that_exchanges_gradients_is_simulated() -> None:
    assert tuple(simulated_modes()) == COMMS
    assert simulated(touching(0.01), workers=2).comms == COMMS


def test_the_papers_setup_tells_the_papers_story() -> None:
    """8 machines of 6, 100 Gbit/s, LM: hybrid before servers alone before Horovod, which stops scaling; with one
    machine no way to communicate is far from another's order of magnitude."""
    paper = measured.load(PAPER)
    assert sum(rows.rows * 512 for rows in paper.rows) == pytest.approx(813e6, rel=0.001)
    assert all(rows.alpha == pytest.approx(0.02) for rows in paper.rows)
    found = simulated(paper, workers=48, per_host=6, gbit=100, latency_us=10)
    mpi, ps, hybrid, sharded, auto = (found.at(comm, 48) for comm in COMMS)
    words = [point.words_per_sec or 0 for point in (mpi, ps, hybrid, auto)]
    assert words == sorted(set(words))
    assert words[2] > 2.8 * words[0]  # The paper: 6.02 times Horovod, and 2.8 times TensorFlow's servers.
    assert auto.step_ms <= sharded.step_ms
    assert (mpi.hosts, mpi.routes) == (8, {"allreduce": 1, "allgather": 2})
    # Twice the ranks give an allgather nothing more.
    assert (found.at("mpi", 24).words_per_sec or 0) * 1.1 > words[0]
    assert (found.at("hybrid", 24).words_per_sec or 0) * 1.5 < words[2]


def test_a_dense_model_goes_by_allreduce_everywhere_it_may() -> None:
    dense = info("kernel", "dense", (25_000_000,))
    found = simulated(Measured("f", 1, 1, 0.2, 64, None, (dense,), (), "2026-01-01"), workers=8)
    at = {comm: found.at(comm, 8) for comm in COMMS}
    assert at["mpi"].step_ms == at["hybrid"].step_ms == at["sharded"].step_ms == at["auto"].step_ms < at["ps"].step_ms
    assert at["mpi"].words_per_sec is None


@given(st.floats(0.001, 0.3), st.sampled_from([0.1, 1, 10, 100]), st.integers(1, 4), st.integers(2, 12))
@settings(deadline=None, max_examples=30)
def test_what_holds_for_any_measurement(alpha: float, gbit: float, per_host: int, workers: int) -> None:
    slow, fast = (simulated(touching(alpha), workers=workers, per_host=per_host, gbit=one) for one in (gbit, gbit * 2))
    for comm in COMMS:
        points = [point for point in slow.points if point.comm == comm]
        assert [point.workers for point in points] == list(range(1, workers + 1))
        assert points[0].efficiency == 1
        for point in points:
            assert point.step_ms == pytest.approx(point.compute_ms + point.exchange_ms)
            assert point.examples_per_sec == pytest.approx(1000 * point.workers * 8 / point.step_ms)
            assert fast.at(comm, point.workers).step_ms <= point.step_ms
            assert slow.at("auto", point.workers).step_ms <= point.step_ms + 1e-9


def test_lookahead_shortens_steps_of_several_hosts_only() -> None:
    incidence = ((1, 40 * 1000),)  # no two batches touch the same row
    rows = RowStatistics("big", 100_000, 1000, 1000, 2000, 40, incidence)
    known = dataclasses.replace(touching(0.01), rows=(rows,))
    constants = DEFAULTS.with_link(gbit_per_sec=0.1, latency_us=100)
    at = {
        (lookahead, per_host): simulate(
            known, constants, workers=4, workers_per_host=per_host, options=CommOptions(lookahead=lookahead)
        )
        for lookahead in Lookahead
        for per_host in (1, 4)
    }
    step_ms = {key: found.at("sharded", 4).step_ms for key, found in at.items()}
    assert step_ms[Lookahead.ON, 1] == step_ms[Lookahead.AUTO, 1] < step_ms[Lookahead.OFF, 1]
    assert step_ms[Lookahead.AUTO, 4] == step_ms[Lookahead.OFF, 4]
    for found in at.values():
        assert found.at("auto", 4).step_ms <= min(found.at(comm, 4).step_ms for comm in COMMS) + 1e-9
        assert any("comm.lookahead" in assumption for assumption in found.assumptions)


def test_a_mode_that_cannot_be_planned_is_left_out_and_said() -> None:
    fixed = info("inside", "dense", immovable_op="cond/If")
    found = simulated(Measured("f", 1, 1, 0.2, 64, None, (fixed,), (), "2026-01-01"), workers=4)
    assert {point.comm for point in found.points} == set(COMMS) - {"ps"}
    assert any("ps is omitted" in assumption and "«inside»" in assumption for assumption in found.assumptions)


def test_a_measurement_that_knows_no_rows_is_refused() -> None:
    unknown = Measured("f", 1, 1, 0.2, 64, None, (info("table", "sparse", gradient_rows=None),), (), "2026-01-01")
    with pytest.raises(PlanError, match="no mode can be modelled: mpi is omitted"):
        simulated(unknown, workers=4)


def test_auto_is_left_out_where_its_plan_would_be_refused() -> None:
    odd = info("odd", "dense", immovable_op="cond/If", dtype="complex64")
    with pytest.raises(PlanError, match="auto is omitted: comm=auto: variable «odd»"):
        simulated(Measured("f", 1, 1, 0.2, 64, None, (odd,), (), "2026-01-01"), workers=4)


def test_what_the_model_does_not_follow_is_among_the_assumptions() -> None:
    told = " ".join(simulated(touching(0.01), workers=2).assumptions)
    for key in ("comm.sync", "comm.ps.staleness", "comm.ps.backup_workers", "cluster.replicas_per_worker", "partition"):
        assert key in told


def test_numbers_of_workers() -> None:
    assert numbers_of_workers(5) == [1, 2, 3, 4, 5]
    assert shown_numbers(48) == [1, 2, 4, 8, 16, 32, 48]
    assert shown_numbers(8) == [1, 2, 4, 8]
    assert shown_numbers(1) == [1]
    assert numbers_of_workers(1000)[-3:] == [256, 512, 1000]


def test_tables_and_plots_say_that_they_are_modelled(tmp_path: Path) -> None:
    found = simulated(touching(random.Random(1).random() / 10), workers=4, per_host=2)
    text = show.markdown(found)
    assert text.startswith("Modelled, not measured.")
    assert "one device" in text
    assert text.count("\n| 4 |") == len(COMMS)
    assert show.table(found).row_count == 1 + 2 * len(COMMS)
    assert show.table(found).title == "modelled, not measured"
    told = json.loads(json.dumps(as_json(found)))
    assert told["modelled"] is True
    assert len(told["points"]) == 4 * len(COMMS)


def test_dense_and_sparse_bytes_are_those_of_the_plan() -> None:
    whole = touching(0.01)
    both = Measured("f", 2, 1, 0.1, 8, None, (DENSE, BIG), whole.rows, "2026-01-01")
    point = simulated(both, workers=2).at("sharded", 2)
    assert point.sent_bytes == 4000 + 1000 * (2 * 256 + 4 + 1) // 2


def test_the_plot_has_the_ideal_line_and_says_what_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulated(touching(0.05), workers=4)
    drawn: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, file: BinaryIO, **options: Any) -> None:
        drawn.append(figure)
        save(figure, file, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    path = tmp_path / "plots" / "simulation.png"
    show.draw(found, path, "lm, links of 10 Gbit/s")
    assert path.read_bytes().startswith(b"\x89PNG")
    (figure,) = drawn
    assert figure.get_suptitle() == "lm, links of 10 Gbit/s; modelled, not measured"
    throughput, efficiency = ({line.get_label(): line for line in axes.get_lines()} for axes in figure.axes)
    assert set(throughput) == set(efficiency) == {*COMMS, "ideal"}
    alone = throughput["mpi"].get_ydata()[0]
    assert throughput["ideal"].get_xydata().tolist() == [[1, alone], [4, 4 * alone]]
    assert list(efficiency["ideal"].get_ydata()) == [100, 100]


def test_the_title_of_the_plot_names_the_model_and_the_links() -> None:
    constants = DEFAULTS.with_link(gbit_per_sec=25, latency_us=10)
    plain = {"model": {"_target_": "m"}, "model_name": "lm"}
    assert _title(from_plain(plain), constants) == "lm, links of 25 Gbit/s and 10 µs, 1 worker per host"
    given = {**plain, "simulate": {"profile": "/x/measured.json", "workers_per_host": 4}}
    assert _title(from_plain(given), constants).startswith(
        "measured.json, links of 25 Gbit/s and 10 µs, 4 workers per host"
    )
