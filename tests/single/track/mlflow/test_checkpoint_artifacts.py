"""Checkpoints in the artifacts of a local MLflow store share their bytes with the run directory."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from parallax_runner.track.mlflow import checkpoint


@pytest.fixture
def client(tmp_path: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


def new_run(client: MlflowClient, artifacts: Path) -> str:
    experiment = client.create_experiment("links", artifact_location=artifacts.as_uri())
    return client.create_run(experiment).info.run_id


def test_a_checkpoint_is_stored_once_also_after_an_interrupted_attempt(client: MlflowClient, tmp_path: Path) -> None:
    artifacts = tmp_path / "mlartifacts"
    run_id = new_run(client, artifacts)
    folder = tmp_path / "outbox" / "model.ckpt-3"
    folder.mkdir(parents=True)
    data = folder / "model.ckpt-3.data-00000-of-00001"
    data.write_bytes(b"rows")
    kept = tmp_path / "kept"
    kept.hardlink_to(data)
    target = artifacts / run_id / "artifacts" / "checkpoints" / folder.name / data.name
    target.parent.mkdir(parents=True)
    target.write_bytes(b"ro")

    checkpoint.send(client, run_id, folder)

    assert target.read_bytes() == b"rows"
    assert target.samefile(kept)
    assert not folder.exists()
    assert [one.path for one in client.list_artifacts(run_id, "checkpoints")] == [f"checkpoints/{folder.name}"]
