"""The errors of a simulation: none for runs that behave as the model says, and told for others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.simulation import compare, main
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.planning.cost import measured
from parallax_runner.planning.cost.constants import DEFAULTS
from parallax_runner.simulation.simulation import simulate
from tests.single.planning.cost.test_cost import touching


def test_errors_are_relative_to_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = touching(0.01)
    constants = DEFAULTS.with_link(gbit_per_sec=0.2, latency_us=None)
    truth = simulate(profile, constants, workers=4, workers_per_host=1, options=CommOptions())
    times = {"mpi": truth.at("mpi", 4).step_ms, "sharded": truth.at("sharded", 4).step_ms * 2, "ideal": 100.0}
    measurements = [{"mode": mode, "step_ms": ms * factor} for mode, ms in times.items() for factor in (0.9, 1, 1.2)]
    results = {"hosts": 4, "mbit": 200, "latency_us": 0, "measurements": measurements}
    mpi, sharded = compare(profile, results, DEFAULTS, cores=2)
    assert (mpi.mode, mpi.error) == ("mpi", pytest.approx(0))
    assert (sharded.mode, sharded.error) == ("sharded", pytest.approx(-0.5))
    measured.save(profile, tmp_path / "measured.json")
    (tmp_path / "hosts.json").write_text(json.dumps(results))
    assert main([str(tmp_path / "measured.json"), str(tmp_path / "hosts.json"), "--cores", "2"]) == 0
    shown = capsys.readouterr().out
    assert "| 4 | sharded |" in shown and "-50 %" in shown


def test_without_an_ideal_ranks_share_the_cores() -> None:
    profile = touching(0.01)
    results = {"hosts": 4, "mbit": None, "latency_us": None, "measurements": [{"mode": "mpi", "step_ms": 500}]}
    (two,), (four,) = (compare(profile, results, DEFAULTS, cores=cores) for cores in (2, 4))
    assert two.modelled_ms - four.modelled_ms == pytest.approx(100)  # a step of one device, once more
