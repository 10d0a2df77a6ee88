"""What a run hands to its tracker at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.artifacts import RunArtifacts
from parallax_runner.track import plots
from parallax_runner.track.tracker import History, NoTracker


class Recorder(NoTracker):
    """Remembers artifacts and models; one step was recorded."""

    def __init__(self) -> None:
        self.artifacts: list[str] = []
        self.models: list[Path] = []

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        self.artifacts.append(Path(path).name if folder is None else f"{folder}/{Path(path).name}")

    def log_model(self, saved_model: Path) -> None:
        self.models.append(saved_model)

    def history(self) -> History:
        return History({"train/loss": [(1, 1.0)]})


def config(run_dir: Path, *, tracked: bool = True, profiled: bool = False) -> RunConfig:
    return from_plain(
        {
            "cluster": {"launcher": "local"},
            "tracking": {"enabled": tracked, "log_checkpoints": "last"},
            "ckpt": {"enabled": True, "dir": str(run_dir / "ckpt")},
            "profile": {"name": "steps" if profiled else "off", "dir": str(run_dir / "elsewhere")},
        }
    )


RECORD = ["config.yaml", "plan.json", "summary.json"]


def closed(run_dir: Path, *, saved_model: str | None = None) -> Recorder:
    recorder = Recorder()
    RunArtifacts(config(run_dir), run_dir, recorder).close(run_dir / "summary.json", saved_model)
    return recorder


def test_record_plots_and_model(tmp_path: Path) -> None:
    recorder = closed(tmp_path, saved_model="there")
    assert recorder.artifacts == [*RECORD, "plots"]
    assert recorder.models == [Path("there")]


def test_logs_are_sent_and_nothing_that_is_beside_them(tmp_path: Path) -> None:
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run_dir.mkdir()
    elsewhere.mkdir()
    own = ["driver.log", "mpirun.log", "server_0.log", "worker_0.log", "worker_12.log"]
    for name in (*own, "letter.txt", "syslog.log", "worker_x.log"):
        (elsewhere / name).touch()
    (elsewhere / "mlartifacts").mkdir()
    (run_dir / "logs").symlink_to(elsewhere)
    assert closed(run_dir).artifacts == [*RECORD, "plots", *(f"logs/{name}" for name in own)]


def test_a_keras_file_goes_beside_the_model(tmp_path: Path) -> None:
    recorder = Recorder()
    artifacts = RunArtifacts(config(tmp_path), tmp_path, recorder)
    artifacts.close(tmp_path / "summary.json", None, str(tmp_path / "model.keras"))
    assert recorder.artifacts == [*RECORD, "plots", "model.keras"]


def test_a_run_without_a_model_sends_none(tmp_path: Path) -> None:
    assert closed(tmp_path).models == []


def test_a_profile_is_sent_in_a_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "trace.json").write_text("{}")
    for profiled, expected in ((True, ["profile/trace.json"]), (False, [])):
        recorder = Recorder()
        RunArtifacts(config(tmp_path, profiled=profiled), tmp_path, recorder).close(tmp_path / "summary.json", None)
        assert [path for path in recorder.artifacts if "trace" in path] == expected


def broken(error: Exception) -> Callable[[Path, History], list[Path]]:
    def fail(*_: object) -> list[Path]:
        raise error

    return fail


def test_plots_that_cannot_be_drawn_cost_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plots, "plot_run", broken(OSError("no space left on device")))
    assert closed(tmp_path).artifacts == RECORD
    assert "cannot draw the plots: OSError: no space left on device" in caplog.text


def test_without_tracking_nothing_is_made(tmp_path: Path) -> None:
    recorder = Recorder()
    RunArtifacts(config(tmp_path, tracked=False), tmp_path, recorder).close(tmp_path / "summary.json", None)
    assert recorder.artifacts == []
    assert not (tmp_path / "plots").exists()


def test_a_file_that_cannot_be_recorded_fails_no_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    recorder = Recorder()
    monkeypatch.setattr(recorder, "log_artifact", refuse)
    RunArtifacts(config(tmp_path), tmp_path, recorder).close(tmp_path / "summary.json", None)
    assert "some files of this run were not recorded: [Errno 28] No space left" in capsys.readouterr().err
