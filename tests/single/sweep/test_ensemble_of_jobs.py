"""Which jobs of a sweep an ensemble is made of, and what is said where there is none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.errors import ExportError
from parallax_runner.sweep import ensemble
from parallax_runner.sweep.results import Result


def job(name: str, rank: int | None, folder: Path, **summary: Any) -> Result:
    run_dir = folder / name
    run_dir.mkdir()
    (run_dir / "summary.json").write_text(json.dumps({"saved_model": f"{run_dir}/saved_model"} | summary))
    return Result(
        rank=rank,
        job=name,
        status="finished",
        objective=1.0,
        words_per_sec=None,
        step_ms_p50=None,
        steps=1,
        run_dir=str(run_dir),
        overrides=(),
        tracker_run_id=None,
        error=None,
        objective_name="loss",
    )


def test_the_best_jobs_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(argv)
        return subprocess.CompletedProcess(argv, 0, stdout="a warning\nscore\n", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    jobs = [job("a", 1, tmp_path), job("b", 2, tmp_path), job("c", 3, tmp_path), job("d", None, tmp_path)]
    said = ensemble.make_ensemble(jobs, tmp_path, 2)
    assert said == f"ensemble of a, b: mean of score; {tmp_path}/ensemble"
    assert started[0][3:] == [f"{tmp_path}/ensemble", f"{tmp_path}/a/saved_model", f"{tmp_path}/b/saved_model"]


def test_too_few_jobs_have_a_rank(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"sweep.ensemble=2: only 1 of the sweep's jobs could be ranked"):
        ensemble.make_ensemble([job("a", 1, tmp_path), job("b", None, tmp_path)], tmp_path, 2)


@pytest.mark.parametrize(
    ("why", "told"),
    [("no feature", "b has no SavedModel: no feature"), (None, "it was not requested")],
)
def test_a_job_without_a_model(why: str | None, told: str, tmp_path: Path) -> None:
    jobs = [job("a", 1, tmp_path), job("b", 2, tmp_path, saved_model=None, saved_model_error=why)]
    with pytest.raises(ExportError, match=told):
        ensemble.make_ensemble(jobs, tmp_path, 2)


def test_why_a_process_has_made_none(tmp_path: Path) -> None:
    """The real one, which finds no SavedModel."""
    with pytest.raises(ExportError) as raised:
        ensemble.make_ensemble([job("a", 1, tmp_path), job("b", 2, tmp_path)], tmp_path, 2)
    assert str(raised.value).startswith("sweep.ensemble=2: ")
    assert "SavedModel file does not exist" in str(raised.value)
