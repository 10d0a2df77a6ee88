"""What a run is to be in MLflow, from what the driver knows of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.errors import ConfigError
from parallax_runner.track.mlflow import tracker as tracking
from parallax_runner.track.mlflow.journal import Header, Journal, read_header
from parallax_runner.track.mlflow.run_id import write_run
from parallax_runner.track.mlflow.tracker import MlflowTracker
from parallax_runner.track.tracker import RunInfo, Start

# Nothing listens there: what is recorded stays in the journal.
UNREACHABLE = "http://127.0.0.1:9"


def run_info(run_dir: Path, **fields: Any) -> RunInfo:
    config = {"tracking": {"uri": UNREACHABLE, "experiment": "e"}}
    return RunInfo(run_dir=run_dir, name="n", config=config, **fields)


def header_of(run: RunInfo) -> Header:
    run.run_dir.mkdir(exist_ok=True)
    MlflowTracker(run).end("finished", hurry=lambda: True)
    return read_header(run.run_dir / "journal.jsonl")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_runner.track.mlflow.sender.OUT_OF_REACH_SECS", 0.0)


def test_tags_name_the_run_and_where_it_comes_from(tmp_path: Path) -> None:
    origin = {"user": "me", "command": "python", "git.commit": "abc", "git.dirty": "true"}
    header = header_of(run_info(tmp_path, tags={"workers": 2, "user": "mine"}, origin=origin))
    assert (header.uri, header.experiment, header.run_name, header.parent) == (UNREACHABLE, "e", "n", None)
    assert header.tags == {
        **{"mlflow.source.name": "python", "mlflow.source.git.commit": "abc"},
        **{"git.dirty": "true", "workers": "2", "user": "mine", "mlflow.note.content": "`python`"},
    }


@pytest.mark.parametrize("in_sweep", [True, False])
def test_a_job_names_the_run_that_it_starts_from(tmp_path: Path, in_sweep: bool) -> None:
    start = Start(tmp_path / "source" / "ckpt" / "model.ckpt-3", "theirs")
    header = header_of(run_info(tmp_path / "new", start=start, sweep_dir=tmp_path if in_sweep else None))
    assert header.parent == (str(tmp_path) if in_sweep else None)
    assert header.tags["parallax.resumed_from"] == "theirs"


def test_a_tag_that_the_sender_sets_itself_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header_of(run_info(tmp_path, tags={"mlflow.parentRunId": "x", "mlflow.note.content": "own", "team": "x"}))
    (told,) = [record.message for record in caplog.records if "tracking.tags" in record.message]
    assert "tracking.tags.mlflow.parentRunId is not recorded" in told


def test_a_sweep_goes_on_with_its_own_run(tmp_path: Path) -> None:
    for _ in range(2):
        header_of(run_info(tmp_path, is_sweep=True))
    assert [path.name for path in tmp_path.glob("journal*.jsonl")] == ["journal.jsonl"]
    header_of(run_info(tmp_path))
    assert {path.name for path in tmp_path.glob("journal*.jsonl")} == {"journal.jsonl", "journal.2.jsonl"}


def test_a_journal_without_its_first_line_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("")
    assert not tracking._has_run(tmp_path, "fake:")
    Journal(tmp_path / "journal.2.jsonl", Header("fake:", "e", None))
    assert tracking._has_run(tmp_path, "fake:")


def test_the_history_is_that_of_the_present_journal(tmp_path: Path) -> None:
    for loss in (9.0, 5.0):
        tracker = MlflowTracker(run_info(tmp_path, tags={"workers": 2}))
        tracker.log_metrics(1, {"train/loss": loss, "validation/loss": None})
        tracker.log_metrics(2, {"train/loss": math.inf})
        history = tracker.history()
        tracker.end("finished", hurry=lambda: True)
    assert history.metrics == {"train/loss": [(1, 5.0), (2, math.inf)]}
    assert history.tags == {"workers": "2"}


def test_a_store_that_cannot_be_used_is_refused_before_a_run(tmp_path: Path) -> None:
    tracking_group = {"uri": f"sqlite:///{tmp_path}/no/store.db", "experiment": "e"}
    with pytest.raises(ConfigError, match=r"the folder .* does not exist"):
        MlflowTracker.check({"tracking": tracking_group})


def test_the_id_is_read_from_the_folder_of_the_run(tmp_path: Path) -> None:
    assert MlflowTracker.run_id_in(tmp_path) is None
    write_run(tmp_path, run_id="abc", uri=UNREACHABLE, experiment_id="1")
    assert MlflowTracker.run_id_in(tmp_path) == "abc"
