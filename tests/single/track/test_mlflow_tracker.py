import logging
import math
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from parallax_runner.errors import ConfigError
from parallax_runner.track.mlflow_tracker import MlflowTracker


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables made, which takes seconds."""
    database = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowTracker(f"sqlite:///{database}", "first", None, {}).end("finished")
    return database


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def stored(uri: str, run_id: str):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri).get_run(run_id)


def history(uri: str, run_id: str, key: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    return [(m.step, m.value) for m in MlflowClient(tracking_uri=uri).get_metric_history(run_id, key)]


def test_params_tags_and_name_come_back(uri: str) -> None:
    tracker = MlflowTracker(uri, "exp", "a run", {"comm": "hybrid", "workers": 2, "note": "x" * 9000})
    many = {f"p{i}": i for i in range(230)}
    tracker.log_params({"comm": {"name": "hybrid"}, "long": "v" * 7000, "odd=[key]": 1.5, "many": many})
    tracker.end("finished")
    run = stored(uri, tracker.run_id)
    assert run.data.params["comm.name"] == "hybrid"
    assert run.data.params["odd__key_"] == "1.5"
    assert run.data.params["long"] == "v" * 6000
    assert sum(key.startswith("many.p") for key in run.data.params) == 230
    assert run.data.tags["comm"] == "hybrid"
    assert run.data.tags["workers"] == "2"
    assert len(run.data.tags["note"]) == 8000
    assert run.info.run_name == "a run"


def test_metrics_over_time_come_back(uri: str) -> None:
    tracker = MlflowTracker(uri, "exp", None, {})
    for step in range(1, 1201):
        tracker.log_metrics(step, {"train/loss": 1 / step, "throughput/words_per_sec": None})
    tracker.log_metrics(1200, {"validation/perplexity": math.inf, "odd@key": math.nan})
    tracker.end("finished")
    assert history(uri, tracker.run_id, "train/loss") == [(step, 1 / step) for step in range(1, 1201)]
    metrics = stored(uri, tracker.run_id).data.metrics
    assert metrics["validation/perplexity"] > 1e308
    assert math.isnan(metrics["odd_key"])
    assert "throughput/words_per_sec" not in metrics


def test_artifacts_lie_beside_the_database(uri: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "driver.log").write_text("hello")
    (tmp_path / "plan.json").write_text("{}")
    tracker = MlflowTracker(uri, "exp", None, {})
    tracker.log_artifact(tmp_path / "plan.json")
    tracker.log_artifact(tmp_path / "logs")
    tracker.end("finished")
    folder = tmp_path / "mlartifacts" / tracker.run_id / "artifacts"
    assert (folder / "plan.json").read_text() == "{}"
    assert (folder / "logs" / "driver.log").read_text() == "hello"


@pytest.mark.parametrize(
    ("status", "recorded"), [("finished", "FINISHED"), ("failed", "FAILED"), ("interrupted", "KILLED")]
)
def test_the_first_status_counts(uri: str, status: str, recorded: str) -> None:
    tracker = MlflowTracker(uri, "exp", None, {})
    assert stored(uri, tracker.run_id).info.status == "RUNNING"
    tracker.end(status)
    tracker.end("failed")
    assert stored(uri, tracker.run_id).info.status == recorded


def test_the_environment_does_not_choose_the_run(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = MlflowTracker(uri, "other", None, {})
    monkeypatch.setenv("MLFLOW_RUN_ID", other.run_id)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    tracker = MlflowTracker(uri, "exp", None, {})
    tracker.log_params({"a": 1})
    tracker.end("finished")
    other.end("failed")
    assert tracker.run_id != other.run_id
    assert stored(uri, tracker.run_id).data.params == {"a": "1"}
    assert stored(uri, other.run_id).info.status == "FAILED"


def test_a_store_that_breaks_in_mid_run_is_one_warning(
    uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = MlflowTracker(uri, "exp", None, {})
    (tmp_path / "mlflow.db").write_bytes(b"no database any more" * 1000)
    with caplog.at_level(logging.WARNING, "parallax_runner"):
        tracker.log_params({"a": 1})
        tracker.log_artifact(tmp_path / "nowhere.json")
        tracker.log_metrics(1, {"train/loss": 0.5})
        tracker.end("finished")
    said = [record.message for record in caplog.records]
    assert len([one for one in said if "training goes on" in one]) == 1
    assert [one for one in said if "without its last 1 metrics" in one]


@pytest.mark.parametrize(
    "bad", ["", "file:./mlruns", "./mlruns", "foo://bar", "sqlite:////proc/none/mlflow.db", "http://127.0.0.1:9"]
)
def test_an_unusable_store_is_refused_in_one_message(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"^tracking\.uri=.*sqlite:///mlflow\.db, or tracking=off") as refused:
        MlflowTracker(bad, "exp", None, {})
    assert "\n" not in str(refused.value)
    assert bad in str(refused.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("text" * 1000)
    with pytest.raises(ConfigError, match="not a database"):
        MlflowTracker(f"sqlite:///{tmp_path / 'x.db'}", "exp", None, {})


def test_a_deleted_experiment_is_named(uri: str) -> None:
    from mlflow import MlflowClient

    MlflowTracker(uri, "gone", None, {}).end("finished")
    client = MlflowClient(tracking_uri=uri)
    client.delete_experiment(client.get_experiment_by_name("gone").experiment_id)
    with pytest.raises(ConfigError, match=r"tracking\.experiment=gone was deleted"):
        MlflowTracker(uri, "gone", None, {})


def test_a_server_that_does_not_answer_is_given_up_soon() -> None:
    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Broken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.raises(ConfigError, match=r"tracking\.uri=http"):
        MlflowTracker(f"http://127.0.0.1:{server.server_port}", "exp", None, {})
    server.shutdown()


def test_four_processes_on_one_fresh_database(tmp_path: Path) -> None:
    code = (
        "import sys; from parallax_runner.track.mlflow_tracker import MlflowTracker\n"
        "tracker = MlflowTracker('sqlite:///mlflow.db', 'exp', None, {})\n"
        "tracker.log_params({'a': {'b': 1}}); tracker.log_metrics(1, {'train/loss': 0.5}); tracker.end('finished')\n"
        "print(tracker.run_id)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    jobs = [subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=env, **pipes) for _ in range(4)]
    said = [job.communicate(timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 4, said
    # MLflow and alembic have nothing to say to the user either.
    assert [stderr for _, stderr in said] == [""] * 4
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    runs = [stored(uri, stdout.strip()) for stdout, _ in said]
    assert [run.info.status for run in runs] == ["FINISHED"] * 4
    assert len({run.info.run_id for run in runs}) == 4
    assert len({run.info.experiment_id for run in runs}) == 1
