"""A disk that is full when the jobs have ended: what was trained is not lost."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.objective import Objective
from parallax_runner.config.schema import RunConfig
from parallax_runner.sweep import job, sweep
from parallax_runner.sweep.ledger import Job, Ledger

JOB = Job("a-1", "a=1", ("a=1",), "/runs/a-1")


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Files cannot grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_job_returns_its_objective(
    tmp_path: Path, full_disk: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drive(_: RunConfig) -> Objective:
        return Objective("loss", 0.5, "minimize")

    monkeypatch.setattr(job, "_drive", drive)
    standing = job._record(Ledger(tmp_path), JOB, from_plain({}))
    assert (standing.status, standing.objective) == ("finished", 0.5)
    assert (
        "ledger.jsonl cannot be written: File too large. The outcome of a=1 is finished, but" in capsys.readouterr().err
    )


def test_a_sweep_ends_without_its_table(tmp_path: Path, full_disk: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep._saved([], tmp_path, "finished") == []
    assert "results.json was not written: File too large" in capsys.readouterr().err
