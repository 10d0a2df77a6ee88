"""A tracker from a package outside this repository: one module, one YAML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.runs import Run, launch

# docs/extending.md shows both.
MODULE = '''
"""Records runs as JSON lines."""

import json

from parallax_runner.track.params import flatten
from parallax_runner.track.tracker import Tracker


class JsonLines(Tracker):
    """Appends one JSON object a line to the file `tracking.options.file` of the run's folder."""

    def __init__(self, run):
        self._path = run.run_dir / run.config["tracking"]["options"]["file"]
        self._write("start", name=run.name, tags=dict(run.tags))

    def log_params(self, params):
        self._write("params", params=flatten(params))

    def log_metrics(self, step, metrics):
        self._write("metrics", step=step, metrics=metrics)

    def end(self, status, hurry=lambda: False):
        self._write("end", status=status)

    def _write(self, kind, **fields):
        with open(self._path, "a") as file:
            print(json.dumps({"kind": kind, **fields}), file=file)
'''
CONFIG = """
enabled: true
tracker: jsonl_tracker.JsonLines
options:
  file: record.jsonl
"""
ARGUMENTS = ("tracking=jsonl", "+tracking.tags.team=x", "model=simple", "train.log_every=2")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The files of the package's author."""
    package = tmp_path / "package"
    (package / "conf" / "tracking").mkdir(parents=True)
    (package / "jsonl_tracker.py").write_text(MODULE)
    (package / "conf" / "tracking" / "jsonl.yaml").write_text(CONFIG)
    assert len([path for path in package.rglob("*") if path.is_file()]) == 2
    return package


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _depth(path: Path) -> int:
    return len(path.parts)


def only(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (line,) = [line for line in lines if line["kind"] == kind]
    return line


def recorded(run: Run) -> list[dict[str, Any]]:
    run.expect_success()
    assert not (run.run_dir / "journal.jsonl").exists(), "MLflow's journal"
    return lines_of(run.run_dir / "record.jsonl")


def test_a_run_is_recorded_by_it_and_by_no_other(package: Path, tmp_path: Path) -> None:
    arguments = (*ARGUMENTS, "comm=mpi", "train.steps=6", "train.validate_steps=3")
    run = launch("--config-dir", str(package / "conf"), *arguments, cwd=tmp_path / "cwd", python_path=package)
    lines = recorded(run)
    assert only(lines, "start")["name"].startswith("simple-mpi-2w-")
    assert only(lines, "start")["tags"] == {
        **{"comm": "mpi", "model": "simple", "workers": 2, "servers": 0, "team": "x"},
    }
    params = only(lines, "params")["params"]
    assert (params["train.steps"], params["tracking.tracker"]) == ("6", "jsonl_tracker.JsonLines")
    losses = {line["step"]: line["metrics"]["train/loss"] for line in lines if "train/loss" in line.get("metrics", {})}
    assert set(losses) == {1, 2, 4, 6}
    assert losses[6] == run.summary["loss_last"]
    assert {line["step"] for line in lines if "validation/loss" in line.get("metrics", {})} == {3, 6}
    assert lines[-1] == {"kind": "end", "status": "finished"}
    assert not list((tmp_path / "cwd").glob("*mlflow*"))


def test_a_sweep_and_its_jobs_are_recorded(package: Path, tmp_path: Path) -> None:
    """Found by `hydra.searchpath`; the loss of the second job becomes infinite."""
    search, rates = f"hydra.searchpath=[{package / 'conf'}]", "optimizer.learning_rate=0.1,1e30"
    own = ("tracking.options.file=mine.jsonl", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    run = launch(
        "-m", search, *ARGUMENTS, "comm=local", "train.steps=3", rates, *own, cwd=tmp_path / "cwd", python_path=package
    )
    assert run.exit_status == 1, run.stderr
    above, *jobs = (lines_of(path) for path in sorted((tmp_path / "sweep").rglob("mine.jsonl"), key=_depth))
    assert only(above, "params")["params"]["optimizer.learning_rate"] == '["0.1", "1e+30"]'
    assert {only(lines, "end")["status"] for lines in jobs} == {"finished", "failed"}
    assert only(above, "end")["status"] == "failed"


def test_its_settings_are_checked_before_anything_starts(package: Path, tmp_path: Path) -> None:
    (package / "jsonl_tracker.py").write_text(MODULE.replace("JsonLines", "Other"))
    run = launch("--config-dir", str(package / "conf"), *ARGUMENTS, cwd=tmp_path / "cwd", python_path=package)
    assert run.exit_status == 2
    run.expect_nothing_started()
    place = "package/conf/tracking/jsonl.yaml:3"
    assert f"tracking.tracker=jsonl_tracker.JsonLines ({tmp_path}/{place}): jsonl_tracker.JsonLines" in run.stderr
