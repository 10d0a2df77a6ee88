"""What a run hands to its tracker at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.artifacts import RunArtifacts
from parallax_runner.track import plots
from parallax_runner.track.journal import Header, Journal
from parallax_runner.track.tracker import NoTracker


class Recorder(NoTracker):
    """Remembers artifacts and events."""

    def __init__(self) -> None:
        self.artifacts: list[str] = []
        self.events: list[tuple[str, dict[str, str | Path]]] = []

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        self.artifacts.append(Path(path).name if folder is None else f"{folder}/{Path(path).name}")

    def log_event(self, kind: str, **paths: str | Path) -> None:
        self.events.append((kind, paths))


def config(run_dir: Path, *, tracked: bool = True, profiled: bool = False) -> RunConfig:
    return from_plain(
        {
            "cluster": {"launcher": "local"},
            "tracking": {"enabled": tracked, "log_checkpoints": "last"},
            "ckpt": {"enabled": True, "dir": str(run_dir / "ckpt")},
            "profile": {"name": "steps" if profiled else "off", "dir": str(run_dir / "elsewhere")},
        }
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """One step was recorded."""
    journal = Journal(tmp_path / "journal.jsonl", Header("sqlite:///mlflow.db", "e", None))
    journal.append("metrics", step=1, time_ms=0, metrics={"train/loss": 1.0})
    journal.close()
    return tmp_path


RECORD = ["config.yaml", "plan.json", "summary.json"]


def closed(run_dir: Path, **summary: Any) -> Recorder:
    recorder = Recorder()
    RunArtifacts(config(run_dir), run_dir, recorder).close(run_dir / "summary.json", summary)
    return recorder


def test_record_plots_and_model(run_dir: Path) -> None:
    recorder = closed(run_dir, saved_model="there")
    assert recorder.artifacts == [*RECORD, "plots"]
    assert recorder.events == [("model", {"saved_model": "there"})]


def test_logs_are_sent_and_nothing_that_is_beside_them(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    own = ["driver.log", "mpirun.log", "server_0.log", "worker_0.log", "worker_12.log"]
    for name in (*own, "letter.txt", "syslog.log", "worker_x.log"):
        (elsewhere / name).touch()
    (elsewhere / "mlartifacts").mkdir()
    (run_dir / "logs").symlink_to(elsewhere)
    assert closed(run_dir).artifacts == [*RECORD, "plots", *(f"logs/{name}" for name in own)]


def test_a_run_without_a_model_sends_none(run_dir: Path) -> None:
    assert closed(run_dir).events == []
    assert closed(run_dir, saved_model=None).events == []


def test_a_profile_is_sent_in_a_folder_of_that_name(run_dir: Path) -> None:
    (run_dir / "elsewhere").mkdir()
    (run_dir / "elsewhere" / "trace.json").write_text("{}")
    for profiled, expected in ((True, ["profile/trace.json"]), (False, [])):
        recorder = Recorder()
        RunArtifacts(config(run_dir, profiled=profiled), run_dir, recorder).close(run_dir / "summary.json", {})
        assert [path for path in recorder.artifacts if "trace" in path] == expected


def broken(error: Exception) -> Callable[[Path], list[Path]]:
    def fail(_: Path) -> list[Path]:
        raise error

    return fail


def test_plots_that_cannot_be_drawn_cost_a_warning(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plots, "plot_run", broken(OSError("no space left on device")))
    assert closed(run_dir).artifacts == RECORD
    assert "no plots: OSError: no space left on device" in caplog.text


def test_without_tracking_nothing_is_made(run_dir: Path) -> None:
    recorder = Recorder()
    RunArtifacts(config(run_dir, tracked=False), run_dir, recorder).close(run_dir / "summary.json", {})
    assert recorder.artifacts == []
    assert not (run_dir / "plots").exists()
