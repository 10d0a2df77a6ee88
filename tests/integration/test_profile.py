"""Profiles of real runs: the files, and the trace of all processes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from parallax_runner.profile.run_metadata_files import DERIVED, run_metadata_files
from tests.integration.runs import Run, launch
from tests.integration.test_tracking import artifact_paths, only_run
from tests.single.profile.trace_rules import check_trace, lanes, processes


@pytest.fixture(scope="module")
def profiled(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """10 steps under hybrid, the fourth and the eighth of them profiled; recorded."""
    cwd = tmp_path_factory.mktemp("profiled")
    steps = ("train.steps=10", "profile=steps", "profile.steps=[4,8]")
    return launch(*lm, "comm=hybrid", *steps, cwd=cwd).expect_success()


@pytest.fixture(scope="module")
def trace(profiled: Run) -> dict[str, Any]:
    return json.loads((profiled.run_dir / "profile" / "trace.json").read_text())


def events(trace: dict[str, Any], process: str, step: int) -> list[dict[str, Any]]:
    (pid,) = (pid for pid, name in processes(trace).items() if name == process)
    found = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == pid]
    return [event for event in found if event["args"]["step"] == step]


def test_each_rank_leaves_a_file_for_each_listed_step(profiled: Run) -> None:
    files = run_metadata_files(profiled.run_dir / "profile")
    assert {step: list(ranks) for step, ranks in files.items()} == {4: [0, 1], 8: [0, 1]}


def test_the_trace_has_all_processes_at_the_same_time(trace: dict[str, Any]) -> None:
    check_trace(trace)
    assert list(processes(trace).values()) == ["worker 0", "worker 1", "server 0"]
    assert {"CPU:0 compute for worker 0", "CPU:0 compute for worker 1"} <= set(lanes(trace)["server 0"])
    for step in (4, 8):
        begins = [min(event["ts"] for event in events(trace, name, step)) for name in processes(trace).values()]
        ends = [max(one["ts"] + one["dur"] for one in events(trace, name, step)) for name in processes(trace).values()]
        assert max(begins) < min(ends)  # they share one time axis: at some moment all three are in the step
    # A worker's second profiled step comes after its first.
    first, second = (next(e for e in events(trace, "worker 1", s) if e["cat"] == "step") for s in (4, 8))
    assert first["ts"] + first["dur"] < second["ts"]


def test_collectives_and_transfers_are_communication(trace: dict[str, Any]) -> None:
    for worker in ("worker 0", "worker 1"):
        classes = {event["name"]: event["cat"] for event in events(trace, worker, 4)}
        assert classes["ParallaxSum"] == classes["RecvTensor"] == "communication"
        assert classes["Sigmoid"] == "compute"
    classes = {event["name"]: event["cat"] for event in events(trace, "server 0", 4)}
    assert classes["SparseAccumulatorApplyGradient"] == "communication"
    assert classes["SparseAccumulatorTakeGradient"] == "waiting"
    assert classes["ResourceGather"] == classes["ResourceSparseApplyAdagrad"] == "compute"


def test_shares_add_up_and_both_kinds_are_there(profiled: Run) -> None:
    with open(profiled.run_dir / "profile" / "shares.csv", newline="") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    assert [(row["step"], row["rank"]) for row in rows] == [(4, 0), (4, 1), (8, 0), (8, 1)]
    parts = ("compute_ms", "communication_ms", "servers_ms", "waiting_ms", "idle_ms")
    for row in rows:
        assert sum(row[part] for part in parts) == pytest.approx(row["span_ms"], abs=1e-5)
        assert row["compute_ms"] > 0 and row["communication_ms"] > 0


def test_the_heaviest_ops_are_those_of_the_graph(profiled: Run) -> None:
    with open(profiled.run_dir / "profile" / "heaviest_ops.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    (allreduce, _) = (row for row in rows if row["type"] == "ParallaxSum")
    assert (allreduce["class"], allreduce["count"]) == ("communication", "2")  # two steps of one rank
    assert "ParallaxSum" in (profiled.run_dir / "profile" / "heaviest_ops.txt").read_text()


def test_all_of_it_is_in_mlflow(profiled: Run) -> None:
    paths = artifact_paths(profiled, only_run(profiled).info.run_id, "profile")
    raw = {f"profile/worker_{rank}/run_meta_{step}.pb" for rank in (0, 1) for step in (4, 8)}
    assert paths == raw | {f"profile/{name}" for name in DERIVED}


def test_the_terminal_says_what_came_of_it(profiled: Run) -> None:
    assert "parallax_runner: profile of 2 steps: compute " in profiled.stderr


def test_one_worker_of_a_run_that_resumes_behind_the_beginning_of_the_range(
    lm: tuple[str, ...], profiled: Run, tmp_path: Path
) -> None:
    run = launch(
        *lm,
        "comm=hybrid",
        "train.steps=13",
        f"ckpt.resume={profiled.run_dir}",
        "profile=range",
        "profile.range=[9,13]",
        "profile.worker=1",
        "profile.dir=profiles",
        "tracking=off",
        cwd=tmp_path,
    ).expect_success()
    files = run_metadata_files(tmp_path / "profiles")
    assert {step: list(ranks) for step, ranks in files.items()} == {11: [1], 12: [1]}
    assert not (run.run_dir / "profile").exists()
    frozen = OmegaConf.load(run.run_dir / "config.yaml")
    assert frozen.profile.dir == str(tmp_path / "profiles")  # in every process, whatever its folder
    said = (run.run_dir / "logs" / "driver.log").read_text()
    assert "steps 9, 10 of profile.range are not profiled, because the run starts after step 10" in said
    trace = json.loads((tmp_path / "profiles" / "trace.json").read_text())
    assert list(processes(trace).values()) == ["worker 1", "server 0"]


def test_a_run_without_a_profile_leaves_none(tracked: Run) -> None:
    assert not (tracked.run_dir / "profile").exists()
    assert "profile" not in tracked.stderr
