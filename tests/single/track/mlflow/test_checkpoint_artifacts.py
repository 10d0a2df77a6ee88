"""Checkpoints in the artifacts of a local MLflow store share their bytes with the run directory."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from parallax_runner.track.mlflow import artifacts, checkpoint


@pytest.fixture
def client(tmp_path: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


def new_run(client: MlflowClient, stored: Path) -> str:
    experiment = client.create_experiment("links", artifact_location=stored.as_uri())
    return client.create_run(experiment).info.run_id


def test_a_checkpoint_is_stored_once_also_after_an_interrupted_attempt(client: MlflowClient, tmp_path: Path) -> None:
    stored = tmp_path / "mlartifacts"
    run_id = new_run(client, stored)
    folder = tmp_path / "outbox" / "model.ckpt-3"
    folder.mkdir(parents=True)
    data = folder / "model.ckpt-3.data-00000-of-00001"
    data.write_bytes(b"rows")
    kept = tmp_path / "kept"
    kept.hardlink_to(data)
    target = stored / run_id / "artifacts" / "checkpoints" / folder.name / data.name
    target.parent.mkdir(parents=True)
    target.write_bytes(b"ro")

    checkpoint.send(client, run_id, folder)

    assert target.read_bytes() == b"rows"
    assert target.samefile(kept)
    assert not folder.exists()
    assert [one.path for one in client.list_artifacts(run_id, "checkpoints")] == [f"checkpoints/{folder.name}"]


@pytest.mark.parametrize("attempts", [1, 2])
def test_large_files_of_a_folder_are_stored_once(attempts: int, tmp_path: Path) -> None:
    folder, stored = tmp_path / "model", tmp_path / "mlartifacts"
    (folder / "variables").mkdir(parents=True)
    large, small = folder / "variables" / "variables.data", folder / "MLmodel"
    large.write_bytes(bytes(artifacts.LEAST_LINKED_BYTES))
    small.write_text("small")
    for _ in range(attempts):
        artifacts.add_folder(folder, stored.as_uri(), "step-3", lambda: pytest.fail("the store is a folder"))
    found = stored / "step-3"
    assert (found / "variables" / large.name).samefile(large)
    assert (found / small.name).read_text() == "small"
    assert not (found / small.name).samefile(small), "MLflow may write to it"


def test_another_store_receives_copies(tmp_path: Path) -> None:
    sent: list[Path] = []
    artifacts.add_folder(tmp_path, "mlflow-artifacts://host/of/run", None, lambda: sent.append(tmp_path))
    assert sent == [tmp_path]
