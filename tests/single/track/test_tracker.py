"""The interface: what every tracker has without defining it, and where the MLflow one begins to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.errors import ConfigError
from parallax_runner.track.mlflow.tracker import MlflowTracker
from parallax_runner.track.tracker import History, NoTracker, RunInfo, Tracker, find_tracker


class Silent(Tracker):
    """Defines nothing."""


def test_a_tracker_needs_to_define_nothing(tmp_path: Path) -> None:
    Silent.check({})
    for tracker in (Silent(RunInfo(run_dir=tmp_path, name="n", config={})), NoTracker()):
        tracker.log_params({"a": {"b": 1}})
        tracker.log_metrics(1, {"train/loss": 0.5})
        tracker.log_sample({"system/cpu_utilization_percentage": 1.0})
        tracker.log_artifact(tmp_path)
        tracker.log_artifact(tmp_path, "plots")
        tracker.log_model(tmp_path)
        tracker.set_tags({"a": 1})
        tracker.end("finished")
        assert tracker.run_id is None
        assert tracker.history() == History({}, {})
    assert Silent.run_id_in(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_no_tracker_wants_takes_no_room(tmp_path: Path) -> None:
    folder = tmp_path / "model.ckpt-3"
    folder.mkdir()
    (folder / "model.ckpt-3.index").write_text("i")
    NoTracker().log_checkpoint(folder)
    assert not folder.exists()


def test_a_tracker_that_leaves_nothing_behind_has_nothing_to_sync(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="action=sync: Silent stores no records to send later"):
        Silent.sync(tmp_path, {})


def test_the_name_mlflow() -> None:
    assert find_tracker("mlflow") is MlflowTracker


def test_mlflow_is_imported_only_when_a_run_is_opened() -> None:
    code = (
        "import sys; import parallax_runner.track.mlflow.tracker, parallax_runner.driver.pipeline; "
        "print([name for name in ('mlflow', 'tensorflow', 'horovod') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
