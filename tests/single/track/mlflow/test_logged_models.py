"""In MLflow a run's SavedModel is a logged model with the metrics of its step, and the data are inputs; each once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from parallax_runner.track.mlflow import artifacts
from parallax_runner.track.mlflow.delivery import Delivery, sent_path
from parallax_runner.track.mlflow.journal import Header, Journal, read_header
from parallax_runner.track.mlflow.model import DESCRIPTION
from parallax_runner.track.mlflow.runs import open_run
from parallax_runner.track.mlflow.store import OutOfReach
from parallax_runner.track.mlflow.sync import sync
from tests.free_port import pick_free_port

DATASET = {
    "name": "package.load",
    "features": {
        "ids": {"shape": [3], "dtype": "int64"},
        "words": {"shape": [None], "dtype": "int32", "kind": "ragged"},
    },
    "source": {"_target_": "package.load", "seed": 1},
}


def new_journal(folder: Path, uri: str) -> Journal:
    folder.mkdir(exist_ok=True)
    journal = Journal(folder / "journal.jsonl", Header(uri, "exp", "a run"))
    journal.append_start(summary={})
    return journal


def add_dataset(journal: Journal, digest: str, validation_digest: str) -> None:
    for context, value, examples in (("training", digest, 100), ("validation", validation_digest, 10)):
        journal.append("dataset", **DATASET, digest=value, context=context, examples=examples)


def add_metrics(journal: Journal, step: int, **values: float | str) -> None:
    metrics = {key.replace("_", "/"): value for key, value in values.items()}
    journal.append("metrics", step=step, time_ms=1000 + step, metrics=metrics)


def add_checkpoint(journal: Journal, step: int) -> None:
    folder = journal.path.parent / ".outbox" / f"model.ckpt-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"model.ckpt-{step}.index").write_text("i")
    journal.append("event", event="checkpoint", fields={"folder": f".outbox/{folder.name}"})


def add_model(journal: Journal, step: int) -> None:
    """Writes what the sender reads of a SavedModel."""
    saved_model = journal.path.parent / "saved_model"
    (saved_model / DESCRIPTION).parent.mkdir(parents=True, exist_ok=True)
    tensors = {"x": {"dtype": "float32", "shape": [-1]}}
    described = {"checkpoint": f"model.ckpt-{step}", "tags": ["serve"], "signature": "serving_default"}
    described |= {"tensorflow": "2.9.9", "inputs": tensors, "outputs": tensors, "example": {"x": [0.5]}}
    (saved_model / DESCRIPTION).write_text(json.dumps(described))
    journal.append("event", event="model", fields={"saved_model": "saved_model"})


def whole_run(folder: Path, uri: str, step: int = 25) -> Journal:
    """Checkpoints of steps 10 and 25, and the model of one of them; 10 is reported, and 25 lies between two reports."""
    journal = new_journal(folder, uri)
    add_dataset(journal, "d1", "d2")
    add_metrics(journal, 5, train_loss=3.0)
    add_checkpoint(journal, 10)
    add_metrics(journal, 10, train_loss=2.0, validation_loss=2.5, throughput_steps=9.0, train_auc="nan")
    add_metrics(journal, 20, train_loss=1.0)
    add_checkpoint(journal, 25)
    add_metrics(journal, 30, train_loss=0.5, validation_loss=0.7)
    add_model(journal, step)
    journal.append_end("finished")
    return journal


def send(path: Path) -> None:
    with Delivery(path, open_run, read_header(path)) as delivery:
        delivery.send_all()


def the_run(uri: str) -> tuple[MlflowClient, Any]:
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("exp").experiment_id])
    return client, run


def models(uri: str) -> dict[str, LoggedModel]:
    client, run = the_run(uri)
    found = client.search_logged_models([run.info.experiment_id])
    by_name = {model.name: model for model in found}
    assert len(by_name) == len(found)
    return by_name


def metrics_of(model: LoggedModel) -> set[tuple[str, float, int, str | None]]:
    found = [(one.key, one.value, one.step, one.dataset_digest) for one in model.metrics or []]
    assert len(set(found)) == len(found)
    return set(found)


def check_whole_run(uri: str) -> None:
    found = models(uri)
    client, run = the_run(uri)
    assert run.info.status == "FINISHED"
    assert {name: str(model.status) for name, model in found.items()} == {"step-25": "READY"}
    assert metrics_of(found["step-25"]) == {("train/loss", 1.0, 20, "d1"), ("validation/loss", 2.5, 10, "d2")}
    assert found["step-25"].params == {"step": "25"}
    outputs = [(output.model_id, output.step) for output in run.outputs.model_outputs]
    assert outputs == [(found["step-25"].model_id, 25)]
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(5, 3.0), (10, 2.0), (20, 1.0), (30, 0.5)]
    inputs = {(one.dataset.digest, one.tags[0].value, one.dataset.name) for one in run.inputs.dataset_inputs}
    assert inputs == {("d1", "training", "package.load"), ("d2", "validation", "package.load")}
    assert len(run.inputs.dataset_inputs) == 2
    for step in (10, 25):
        (file,) = client.list_artifacts(run.info.run_id, f"checkpoints/model.ckpt-{step}")
        assert file.path.endswith(".index")
    files = {file.path for file in client.list_logged_model_artifacts(found["step-25"].model_id)}
    assert {"MLmodel", "saved_model"} <= files
    assert "model/MLmodel" in {file.path for file in client.list_artifacts(run.info.run_id, "model")}


def test_the_saved_model_is_a_logged_model_with_the_metrics_of_its_step(uri: str, tmp_path: Path) -> None:
    send(whole_run(tmp_path / "run", uri).path)
    check_whole_run(uri)
    _, run = the_run(uri)
    dataset = next(one.dataset for one in run.inputs.dataset_inputs if one.dataset.digest == "d1")
    assert json.loads(dataset.profile) == {"num_rows": 100}
    features = json.loads(json.loads(dataset.schema)["mlflow_tensorspec"]["features"])
    assert features == [
        {"name": "ids", "type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1, 3]}},
        {"name": "words", "type": "tensor", "tensor-spec": {"dtype": "int32", "shape": [-1, -1]}},
    ]
    assert json.loads(dataset.source)["tags"] == {"_target_": "package.load", "seed": "1"}


def test_the_best_model_has_the_metrics_of_its_own_step(uri: str, tmp_path: Path) -> None:
    send(whole_run(tmp_path / "run", uri, step=10).path)
    (model,) = models(uri).values()
    assert model.name == "step-10"
    assert metrics_of(model) == {("train/loss", 2.0, 10, "d1"), ("validation/loss", 2.5, 10, "d2")}


def test_a_journal_that_is_sent_twice_makes_the_model_once(uri: str, tmp_path: Path) -> None:
    journal = whole_run(tmp_path / "run", uri)
    send(journal.path)
    before = {name: model.model_id for name, model in models(uri).items()}
    sent_path(journal.path).unlink()
    for step in (10, 25):  # as if the crash had come before they were removed
        folder = journal.path.parent / ".outbox" / f"model.ckpt-{step}"
        folder.mkdir()
        (folder / f"model.ckpt-{step}.index").write_text("i")
    send(journal.path)
    check_whole_run(uri)
    assert {name: model.model_id for name, model in models(uri).items()} == before


@pytest.mark.parametrize(
    ("owner", "lost"),
    [
        (artifacts, "add_folder"),
        *((MlflowClient, name) for name in ("create_logged_model", "log_outputs", "finalize_logged_model")),
        *((MlflowClient, name) for name in ("log_inputs", "log_batch", "set_terminated")),
    ],
)
def test_an_answer_that_is_lost_doubles_nothing(
    owner: Any, lost: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call to the store does what it should, and fails once afterwards; another process goes on."""
    journal = whole_run(tmp_path / "run", uri)
    original, calls = getattr(owner, lost), 0

    def lose(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        original(*args, **kwargs)
        raise MlflowException("lost")  # an internal error: the same may work later

    monkeypatch.setattr(owner, lost, lose)
    with pytest.raises(OutOfReach), Delivery(journal.path, open_run, read_header(journal.path)) as delivery:
        while delivery.send_next():
            pass
    assert calls == 1
    monkeypatch.undo()
    send(journal.path)
    check_whole_run(uri)


def test_sync_after_the_store_was_away_has_the_same_result(tmp_path: Path, uri: str) -> None:
    journal = whole_run(tmp_path / "run", f"http://127.0.0.1:{pick_free_port()}")
    with pytest.raises(OutOfReach):
        send(journal.path)
    sync(journal.path.parent, uri)
    check_whole_run(uri)


def test_a_store_without_logged_models_gets_artifacts_and_one_note(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An MLflow 2 server knows no such address."""

    def unknown(*_: Any, **__: Any) -> Any:
        raise MlflowException("error code 404 != 200", error_code=1001)

    for name in ("create_logged_model", "search_logged_models", "finalize_logged_model", "log_outputs"):
        monkeypatch.setattr(SqlAlchemyStore, name, unknown)
    send(whole_run(tmp_path / "run", uri).path)
    monkeypatch.undo()
    assert models(uri) == {}
    client, run = the_run(uri)
    assert run.info.status == "FINISHED"
    assert len(client.list_artifacts(run.info.run_id, "checkpoints")) == 2
    assert "model/MLmodel" in {file.path for file in client.list_artifacts(run.info.run_id, "model")}
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "does not support logged models" in said


def test_a_run_that_goes_on_with_other_data_keeps_what_it_said_of_its_model(uri: str, tmp_path: Path) -> None:
    journal = whole_run(tmp_path / "run", uri)
    send(journal.path)
    journal.append_start(summary={})
    add_dataset(journal, "d3", "d4")
    add_metrics(journal, 40, train_loss=0.25)
    add_model(journal, 40)
    journal.append_end("finished")
    send(journal.path)
    found = models(uri)
    assert metrics_of(found["step-25"]) == {("train/loss", 1.0, 20, "d1"), ("validation/loss", 2.5, 10, "d2")}
    assert metrics_of(found["step-40"]) == {("train/loss", 0.25, 40, "d3"), ("validation/loss", 0.7, 30, "d2")}
    _, run = the_run(uri)
    assert {one.dataset.digest for one in run.inputs.dataset_inputs} == {"d1", "d2", "d3", "d4"}


def test_a_best_model_that_is_sent_again_after_a_change_of_data_keeps_its_metrics(uri: str, tmp_path: Path) -> None:
    journal = whole_run(tmp_path / "run", uri, step=10)
    journal.append_start(summary={})
    add_dataset(journal, "d3", "d4")
    add_model(journal, 10)
    journal.append_end("finished")
    send(journal.path)
    (model,) = models(uri).values()
    assert metrics_of(model) == {("train/loss", 2.0, 10, "d1"), ("validation/loss", 2.5, 10, "d2")}


def test_a_model_that_the_store_refuses_does_not_keep_the_run_from_ending(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise MlflowException("not allowed", error_code=7)  # PERMISSION_DENIED

    monkeypatch.setattr(SqlAlchemyStore, "search_logged_models", refuse)
    send(whole_run(tmp_path / "run", uri).path)
    _, run = the_run(uri)
    assert run.info.status == "FINISHED"
    assert "not allowed" in caplog.text
