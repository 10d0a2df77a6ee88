"""The driver's tracker from end to end, with MLflow's own SQLite store."""

from __future__ import annotations

import math
import os
import shlex
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from parallax_runner.config.compose import Composer, resolve
from parallax_runner.errors import ConfigError
from parallax_runner.track.mlflow import sender
from parallax_runner.track.mlflow.journal import Header, Journal, entries
from parallax_runner.track.mlflow.journal_tracker import JournalTracker
from parallax_runner.track.mlflow.run_id import read_run_id
from parallax_runner.track.mlflow.store import OutOfReach


def track(folder: Path, uri: str, *, goes_on: bool = False, **fields: Any) -> JournalTracker:
    folder.mkdir(exist_ok=True)
    header = Header(**({"uri": uri, "experiment": "exp", "run_name": None} | fields))
    return JournalTracker(folder, header, goes_on=goes_on)


def stored(uri: str, run_id: str | None) -> Run:
    return MlflowClient(tracking_uri=uri).get_run(run_id)


def history(uri: str, run_id: str | None, key: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in MlflowClient(tracking_uri=uri).get_metric_history(run_id, key)]


def test_params_tags_and_name_come_back(uri: str, tmp_path: Path) -> None:
    tracker = track(tmp_path / "run", uri, run_name="a run", tags={"comm": "hybrid", "note": "x" * 9000})
    many = {f"p{i}": i for i in range(230)}
    tracker.log_params({"comm": {"name": "hybrid"}, "long": "v" * 7000, "odd=[key]": 1.5, "many": many})
    tracker.set_tags({"later": 1})
    tracker.end("finished")
    run = stored(uri, tracker.run_id)
    assert run.data.params["comm.name"] == "hybrid"
    assert run.data.params["odd__key_"] == "1.5"
    assert run.data.params["long"] == "v" * 6000
    assert sum(key.startswith("many.p") for key in run.data.params) == 230
    assert (run.data.tags["comm"], run.data.tags["later"]) == ("hybrid", "1")
    assert len(run.data.tags["note"]) == 8000
    assert run.info.run_name == "a run"
    assert run.info.run_id == read_run_id(tmp_path / "run")


def test_metrics_over_time_come_back(uri: str, tmp_path: Path) -> None:
    tracker = track(tmp_path / "run", uri)
    for step in range(1, 1201):
        tracker.log_metrics(step, {"train/loss": 1 / step, "throughput/words_per_sec": None})
    tracker.log_metrics(1200, {"validation/perplexity": math.inf, "odd@key": math.nan})
    tracker.end("finished")
    assert history(uri, tracker.run_id, "train/loss") == [(step, 1 / step) for step in range(1, 1201)]
    metrics = stored(uri, tracker.run_id).data.metrics
    assert metrics["validation/perplexity"] > 1e308
    assert math.isnan(metrics["odd_key"])
    assert "throughput/words_per_sec" not in metrics


def test_a_step_is_recorded_once(uri: str, tmp_path: Path) -> None:
    """After a restart steps come again; the first account of them stays."""
    tracker = track(tmp_path / "run", uri)
    for step, loss in ((1, 3.0), (2, 2.0), (3, 1.0), (2, 9.0), (3, 9.0), (4, 0.5)):
        tracker.log_metrics(step, {"train/loss": loss})
    tracker.log_metrics(2, {"validation/loss": 7.0})
    tracker.end("finished")
    assert history(uri, tracker.run_id, "train/loss") == [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.5)]
    assert history(uri, tracker.run_id, "validation/loss") == [(2, 7.0)]


def test_samples_are_counted(uri: str, tmp_path: Path) -> None:
    tracker = track(tmp_path / "run", uri)
    for value in (1.0, 2.0):
        tracker.log_sample({"system/cpu_utilization_percentage": value})
    tracker.end("failed")
    tracker = track(tmp_path / "run", uri, goes_on=True)
    tracker.log_sample({"system/cpu_utilization_percentage": 3.0})
    tracker.end("finished")
    assert history(uri, tracker.run_id, "system/cpu_utilization_percentage") == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_artifacts_lie_beside_the_database(uri: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "driver.log").write_text("hello")
    (tmp_path / "plan.json").write_text("{}")
    tracker = track(tmp_path / "run", uri)
    tracker.log_artifact(tmp_path / "nowhere.json")
    tracker.log_artifact(tmp_path / "plan.json")
    tracker.log_artifact(tmp_path / "plan.json", "plots")
    tracker.log_artifact(tmp_path / "logs")
    tracker.end("finished")
    folder = tmp_path / "mlartifacts" / str(tracker.run_id) / "artifacts"
    assert (folder / "plan.json").read_text() == (folder / "plots" / "plan.json").read_text() == "{}"
    assert (folder / "logs" / "driver.log").read_text() == "hello"
    assert stored(uri, tracker.run_id).info.status == "FINISHED"


@pytest.mark.parametrize(
    ("status", "recorded"), [("finished", "FINISHED"), ("failed", "FAILED"), ("interrupted", "KILLED")]
)
def test_the_first_status_counts(uri: str, tmp_path: Path, status: Any, recorded: str) -> None:
    tracker = track(tmp_path / "run", uri)
    tracker.end(status)
    tracker.end("failed")
    assert stored(uri, tracker.run_id).info.status == recorded


def test_the_environment_does_not_choose_the_run(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = track(tmp_path / "other", uri, experiment="other")
    other.end("failed")
    monkeypatch.setenv("MLFLOW_RUN_ID", str(other.run_id))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    tracker = track(tmp_path / "run", uri)
    tracker.log_params({"a": 1})
    tracker.end("finished")
    assert tracker.run_id != other.run_id
    assert stored(uri, tracker.run_id).data.params == {"a": "1"}
    assert stored(uri, other.run_id).info.status == "FAILED"


def test_a_run_goes_on_in_its_folder(uri: str, tmp_path: Path) -> None:
    first = track(tmp_path / "run", uri, tags={"comm": "hybrid", "team": "a"})
    first.log_params({"steps": 2, "same": 1})
    for step in (1, 2):
        first.log_metrics(step, {"train/loss": 1.0})
    first.end("interrupted")
    assert stored(uri, first.run_id).info.status == "KILLED"
    again = track(tmp_path / "run", uri, goes_on=True, tags={"comm": "mpi", "stage": "two"})
    again.log_params({"steps": 4, "same": 1, "new": 7})
    for step in (2, 3, 4):
        again.log_metrics(step, {"train/loss": 2.0})
    again.end("finished")
    assert again.run_id == first.run_id
    run = stored(uri, again.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"steps": "2", "same": "1", "new": "7"}
    assert run.data.tags["parallax.changed_params"] == '{"steps": "4"}'
    assert [run.data.tags[key] for key in ("comm", "team", "stage")] == ["mpi", "a", "two"]
    assert history(uri, again.run_id, "train/loss") == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


def test_a_fresh_run_in_a_used_folder_is_another_run(uri: str, tmp_path: Path) -> None:
    first = track(tmp_path / "run", uri)
    first.end("failed")
    again = track(tmp_path / "run", uri)
    again.end("finished")
    assert again.run_id != first.run_id
    assert read_run_id(tmp_path / "run") == again.run_id
    assert [stored(uri, one.run_id).info.status for one in (first, again)] == ["FAILED", "FINISHED"]
    assert {path.name for path in (tmp_path / "run").glob("journal*.jsonl")} == {"journal.jsonl", "journal.2.jsonl"}


def test_a_fresh_run_gives_a_killed_one_none_of_its_files(uri: str, tmp_path: Path) -> None:
    killed = Journal(tmp_path / "run.jsonl", Header(uri, "exp", None))
    killed.append_start(summary={"status": "failed"})
    (tmp_path / "run").mkdir()
    killed.path.rename(tmp_path / "run" / "journal.jsonl")
    (tmp_path / "run" / "plan.json").write_text("the fresh run's")
    track(tmp_path / "run", uri).end("finished")
    assert not (tmp_path / "run" / "summary.json").exists()
    found = [entry["kind"] for entry, _ in entries(tmp_path / "run" / "journal.jsonl")]
    assert found == ["header", "start", "tags", "end"]


def test_a_journal_that_has_lost_its_first_line_fails_no_finished_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MAX_END_SECS", 0.0)
    ended = threading.Event()

    def open_late(*_: object) -> Any:
        ended.wait(60)
        raise OutOfReach("down")

    tracker = JournalTracker(tmp_path, Header("fake:", "exp", None), open_run=open_late)
    (tmp_path / "journal.jsonl").write_text("")
    tracker.end("finished")
    ended.set()
    assert "has no valid header" in caplog.text


def test_a_folder_is_for_one_run_at_a_time(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_runner.track.mlflow.journal.LOCK_WAIT_SECS", 0.1)
    first = track(tmp_path / "run", uri)
    before = (tmp_path / "run" / "journal.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"run_dir=.*another run uses this directory"):
        track(tmp_path / "run", uri)
    assert (tmp_path / "run" / "journal.jsonl").read_bytes().startswith(before)
    first.end("finished")


def test_a_database_that_breaks_in_mid_run(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "OUT_OF_REACH_SECS", 0.5)
    (tmp_path / "mlflow.db").write_bytes(b"no database any more" * 1000)
    tracker = track(tmp_path / "run", uri)
    tracker.log_params({"a": 1})
    tracker.log_metrics(1, {"train/loss": 0.5})
    tracker.end("finished")
    tracker._sender._thread.join(60)  # this thread may print the error slightly later
    told = capsys.readouterr().err
    assert "Training continues" in told
    assert f"MLflow ({uri}) has not received 5 entries of this run: (sqlite3.DatabaseError) file is not" in told
    assert f"python -m parallax_runner action=sync run_dir={tmp_path / 'run'}" in told
    assert [entry["kind"] for entry, _ in entries(tmp_path / "run" / "journal.jsonl")][-1] == "end"


def test_the_command_that_sends_the_rest_can_be_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell takes its quotes off, and Hydra its own, whatever the folder is called."""
    monkeypatch.setattr(sender, "MAX_END_SECS", 0.2)
    run_dir = tmp_path / "a [1], it's b"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        track(run_dir, f"http://127.0.0.1:{silent.getsockname()[1]}").end("finished")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "action=sync" in line]
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "parallax_runner"]
    job = Composer().job(words[3:])
    assert (job.config.action, resolve(job).run_dir) == ("sync", str(run_dir))


def test_a_server_that_only_fails_holds_nobody_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    monkeypatch.setattr(sender, "OUT_OF_REACH_SECS", 0.5)
    server = HTTPServer(("127.0.0.1", 0), Broken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tracker = track(tmp_path / "run", f"http://127.0.0.1:{server.server_port}")
    tracker.end("finished")
    tracker._sender._thread.join(60)
    server.shutdown()
    told = capsys.readouterr().err
    assert "unreachable" in told
    assert "has not received 3 entries" in told


def test_a_server_that_never_answers_holds_nobody_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MAX_END_SECS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracker = track(tmp_path / "run", f"http://127.0.0.1:{silent.getsockname()[1]}")
        kept_open, _ = silent.accept()  # The thread has asked, and waits.
        for step in range(1, 1001):
            tracker.log_metrics(step, {"train/loss": 0.5})
        tracker.end("finished")
        kept_open.close()
    assert "has not received 1003 entries of this run: sending took too long" in capsys.readouterr().err


def test_a_deleted_experiment_costs_the_record_and_not_the_run(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    track(tmp_path / "first", uri, experiment="gone").end("finished")
    client = MlflowClient(tracking_uri=uri)
    experiment_id = client.get_experiment_by_name("gone").experiment_id
    client.delete_experiment(experiment_id)
    tracker = track(tmp_path / "run", uri, experiment="gone")
    tracker.log_metrics(1, {"train/loss": 0.5})
    tracker.end("finished")
    told = capsys.readouterr().err
    assert "tracking.experiment=gone was deleted" in told
    assert "action=sync" in told


def test_four_processes_on_one_fresh_database(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from parallax_runner.track.mlflow.journal import Header\n"
        "from parallax_runner.track.mlflow import sender\n"
        "from parallax_runner.track.mlflow.journal_tracker import JournalTracker\n"
        "sender.MAX_END_SECS = 600\n"
        "folder = Path(sys.argv[1]); folder.mkdir()\n"
        "tracker = JournalTracker(folder, Header('sqlite:///mlflow.db', 'exp', None))\n"
        "tracker.log_params({'a': {'b': 1}}); tracker.log_metrics(1, {'train/loss': 0.5}); tracker.end('finished')\n"
        "print(tracker.run_id)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    jobs = [
        subprocess.Popen([sys.executable, "-c", code, str(number)], cwd=tmp_path, env=env, **pipes)
        for number in range(4)
    ]
    said = [job.communicate(timeout=600) for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 4, said
    # MLflow and alembic have nothing to say to the user either; on a busy machine the wait for them is told.
    lines = {line for _, stderr in said for line in stderr.splitlines()}
    assert all("waiting for MLflow" in line for line in lines), lines
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    runs = [stored(uri, stdout.strip()) for stdout, _ in said]
    assert [run.info.status for run in runs] == ["FINISHED"] * 4
    assert len({run.info.run_id for run in runs}) == 4
    assert len({run.info.experiment_id for run in runs}) == 1
