"""The records in MLflow and `summary.json` of a run that finished, one that failed and one that was stopped."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun

from parallax_runner import __version__
from tests.integration.runs import BATCH_SIZE, SEQUENCE_LENGTH, Broken, Run, launch

# All of them, in every run (docs/concepts.md, «What a run leaves behind»).
SUMMARY_FIELDS = {
    *("status", "action", "comm", "model", "workers", "servers", "steps", "first_step", "global_batch"),
    *("loss_first", "loss_last", "steps_per_sec", "examples_per_sec", "words_per_sec", "step_ms_p50", "step_ms_p90"),
    "data_wait_share",
    *("sent_bytes_per_step", "startup_secs", "mlflow_run_id", "ckpt_path", "error"),
}


def client_of(run: Run) -> MlflowClient:
    database = run.run_dir.parent / "mlflow.db"
    assert database.is_file()
    return MlflowClient(tracking_uri=f"sqlite:///{database}")


def only_run(run: Run) -> MlflowRun:
    """Returns the one MLflow run of the folder."""
    client = client_of(run)
    experiment = client.get_experiment_by_name("parallax_runner")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 1
    return runs[0]


def artifact_paths(run: Run, run_id: str, folder: str | None = None) -> set[str]:
    found = set()
    for entry in client_of(run).list_artifacts(run_id, folder):
        found |= artifact_paths(run, run_id, entry.path) if entry.is_dir else {entry.path}
    return found


def test_a_finished_run_is_one_run_in_the_folder_of_the_command(tracked: Run) -> None:
    recorded = only_run(tracked)
    assert recorded.info.status == "FINISHED"
    assert recorded.info.run_name == "tiny"
    assert recorded.info.run_id == tracked.summary["mlflow_run_id"]
    # None if such a short run has trained before MLflow answered.
    assert tracked.sidecar(20)["mlflow_run_id"] in (recorded.info.run_id, None)


def test_parameters_are_the_flat_configuration(tracked: Run, text: Path) -> None:
    params = only_run(tracked).data.params
    expected = {
        "action": "train",
        "comm.name": "hybrid",
        "comm.average_sparse": "true",
        "train.steps": "20",
        "train.seed": "1",
        "cluster.workers": "2",
        "model._target_": "models.lm.build",
        "model.vocab_size": "200",
        "data.path": str(text),
        "optimizer.learning_rate": "0.2",
        "partition.name": "off",
        "ckpt.keep": "5",
    }
    assert {key: params.get(key) for key in expected} == expected
    assert not {"partition.num", "ckpt.save_steps", "profile.dir"} & set(params), "null, or of no use"


def test_tags_name_the_mode_and_what_the_user_adds(tracked: Run) -> None:
    tags = only_run(tracked).data.tags
    assert (tags["comm"], tags["workers"], tags["purpose"]) == ("hybrid", "2", "a test")
    assert tags["model"] == "lm"
    assert tags["mlflow.note.content"] == f"`{tags['mlflow.source.name']}`"
    assert tags["parallax.version"] == __version__ == tracked.summary["version"]
    assert tags["servers"] == "1"
    assert tags["mlflow.user"]
    assert tags["mlflow.source.name"].startswith("python -m parallax_runner data=text")
    # The command ran outside any repository.
    assert "mlflow.source.git.commit" not in tags


def test_times_of_steps_and_the_machine_are_recorded(tracked: Run) -> None:
    client, run_id = client_of(tracked), only_run(tracked).info.run_id
    for percentile in (50, 90, 99):
        times = client.get_metric_history(run_id, f"time/step_ms_p{percentile}")
        assert sorted(metric.step for metric in times) == [1, 5, 10, 15, 20]
    metrics = only_run(tracked).data.metrics
    assert 0 < metrics["time/run_step_ms_p50"] <= metrics["time/run_step_ms_p90"] <= metrics["time/run_step_ms_p99"]
    assert metrics["time/run_step_ms_p50"] == pytest.approx(tracked.summary["step_ms_p50"])
    assert 0 <= metrics["system/cpu_utilization_percentage"] <= 100
    assert metrics["system/run_memory_megabytes"] > 100


def test_metrics_have_a_history(tracked: Run) -> None:
    client, run_id = client_of(tracked), only_run(tracked).info.run_id
    losses = sorted(client.get_metric_history(run_id, "train/loss"), key=lambda metric: metric.step)
    assert [metric.step for metric in losses] == [1, 5, 10, 15, 20]
    assert losses[0].value == pytest.approx(tracked.summary["loss_first"])
    assert losses[-1].value == pytest.approx(tracked.summary["loss_last"])
    words = client.get_metric_history(run_id, "throughput/words_per_sec")
    assert {metric.step for metric in words} == {1, 5, 10, 15, 20}
    assert all(metric.value > 0 for metric in words)
    (perplexity,) = client.get_metric_history(run_id, "validation/perplexity")
    # Better than a guess among all words.
    assert 1 < perplexity.value < 200


def test_artifacts_are_the_record_of_the_run(tracked: Run) -> None:
    client, run_id = client_of(tracked), only_run(tracked).info.run_id
    logs = {f"logs/{name}.log" for name in ("driver", "worker_0", "worker_1", "server_0")}
    paths = artifact_paths(tracked, run_id)
    assert paths >= {"config.yaml", "plan.json", "summary.json"} | logs
    for name in ("config.yaml", "plan.json", "summary.json"):
        copy = client.download_artifacts(run_id, name, str(tracked.run_dir.parent))
        assert Path(copy).read_text() == (tracked.run_dir / name).read_text()


def test_the_phases_are_between_the_plan_and_the_first_step(tracked: Run) -> None:
    lines = [
        *("plan: comm=hybrid", "starting 2 workers and 1 server", "loading the graph"),
        *(
            "rewriting the graph for each worker",
            "setting initial values",
            "step 5/20",
            "validation after step 20: loss ",
        ),
    ]
    places = [tracked.stderr.find(line) for line in lines]
    assert -1 not in places and places == sorted(places), tracked.stderr


def test_the_summary_has_all_fields(tracked: Run) -> None:
    summary = tracked.summary
    assert set(summary) >= SUMMARY_FIELDS
    assert not any(isinstance(value, dict | list) for value in summary.values())
    expected = {
        "status": "finished",
        "action": "train",
        "comm": "hybrid",
        "workers": 2,
        "servers": 1,
        "steps": 20,
        "first_step": 0,
        "global_batch": 2 * BATCH_SIZE,
        "error": None,
    }
    assert {key: summary[key] for key in expected} == expected
    assert "lm" in summary["model"]
    measured = ("loss_first", "loss_last", "steps_per_sec", "step_ms_p50", "sent_bytes_per_step", "startup_secs")
    assert all(isinstance(summary[key], float) and math.isfinite(summary[key]) for key in measured)
    assert all(summary[key] > 0 for key in measured)
    assert summary["step_ms_p50"] <= summary["step_ms_p90"]
    assert 0 <= summary["data_wait_share"] <= 1
    assert summary["examples_per_sec"] == pytest.approx(summary["steps_per_sec"] * 2 * BATCH_SIZE)
    assert summary["words_per_sec"] == pytest.approx(summary["examples_per_sec"] * SEQUENCE_LENGTH)
    assert summary["startup_secs"] < tracked.secs
    assert Path(summary["ckpt_path"]) == tracked.ckpt_dir / "model.ckpt-20"
    assert Path(f"{summary['ckpt_path']}.index").is_file()


def test_measured_bytes_are_within_the_prediction(tracked: Run) -> None:
    variables = {variable["name"]: variable for variable in tracked.plan["variables"]}
    dense = sum(one["sent_bytes_per_step"] for one in variables.values() if one["gradient"] == "dense")
    predicted = sum(one["sent_bytes_per_step"] for one in variables.values())
    assert dense < tracked.summary["sent_bytes_per_step"] <= predicted


def test_a_killed_worker_is_a_failed_run(killed_worker: Broken) -> None:
    run = killed_worker.run
    summary = run.summary
    assert set(summary) >= SUMMARY_FIELDS
    assert summary["status"] == "failed"
    assert "worker 1" in summary["error"]
    assert "SIGKILL" in summary["error"]
    assert summary["steps"] > 0
    recorded = only_run(run)
    assert recorded.info.status == "FAILED"
    assert recorded.info.run_id == summary["mlflow_run_id"]
    assert "train/loss" in recorded.data.metrics
    assert artifact_paths(run, recorded.info.run_id) >= {"config.yaml", "summary.json", "logs/worker_1.log"}


def test_ctrl_c_is_a_killed_run(interrupted: Broken) -> None:
    run = interrupted.run
    assert run.exit_status == 130
    assert set(run.summary) >= SUMMARY_FIELDS
    assert run.summary["status"] == "interrupted"
    assert run.summary["error"] is None
    assert run.summary["steps"] > 0
    recorded = only_run(run)
    assert recorded.info.status == "KILLED"
    copy = client_of(run).download_artifacts(recorded.info.run_id, "summary.json", str(run.run_dir.parent))
    assert json.loads(Path(copy).read_text())["status"] == "interrupted"


def test_a_run_that_cannot_be_started_is_not_recorded(tmp_path: Path) -> None:
    run = launch("model=simple", "comm=mpi", 'comm.mpi.mpirun_options="\'no closing quote"', cwd=tmp_path)
    assert run.exit_status == 2
    assert not (tmp_path / "mlflow.db").exists()
    assert "parallax_runner: " in run.stderr
    assert "Traceback" not in run.stderr


def test_a_model_that_cannot_be_built_leaves_a_summary(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text('def build(features, optimizer):\n    raise ValueError("seven is odd")\n')
    run = launch("model=simple", "model._target_=broken.build", "comm=local", "tracking=off", cwd=tmp_path)
    assert run.exit_status == 1
    # The user needs to see where the error is.
    assert 'raise ValueError("seven is odd")' in run.stderr
    assert set(run.summary) >= SUMMARY_FIELDS
    assert run.summary["status"] == "failed"
    assert "seven is odd" in run.summary["error"]
