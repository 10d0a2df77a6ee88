"""A Keras run leaves `model.keras`, a SavedModel and a logged model in MLflow, and all of them predict the same."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import mlflow
import numpy as np
import pytest
import tensorflow as tf
from mlflow import MlflowClient

from tests.integration.runs import launch
from tests.integration.test_keras_weights import DATA, MODEL, overrides

LOADED_DATA = DATA | {"validation_examples": 64}


def test_what_keras_and_mlflow_load_predicts_as_the_checkpoint_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launch(
        *("experiment=dlrm_keras", *overrides("data", LOADED_DATA), *overrides("model", MODEL), "data.batch_size=16"),
        *("train.steps=6", "train.validate_steps=3", "ckpt.save_steps=3", "tracking.log_checkpoints=all"),
        cwd=tmp_path,
    ).expect_success()
    assert (run.summary["keras_model"], run.summary["keras_model_error"]) == (str(run.run_dir / "model.keras"), None)
    uri, run_id = f"sqlite:///{tmp_path / 'mlflow.db'}", run.summary["mlflow_run_id"]
    client = MlflowClient(uri)
    stored = client.get_run(run_id)
    model = keras.models.load_model(client.download_artifacts(run_id, "model.keras", str(tmp_path)))
    reader = tf.train.load_checkpoint(str(run.ckpt_dir / "model.ckpt-6"))
    for variable in [*model.variables, *model.optimizer.variables]:
        np.testing.assert_array_equal(variable.numpy(), reader.get_tensor(variable.path), err_msg=variable.path)

    (logged,) = client.search_logged_models([stored.info.experiment_id])
    assert logged.name == "step-6"
    assert [output.model_id for output in stored.outputs.model_outputs] == [logged.model_id]
    # `mlflow.set_tracking_uri` would stay set for later tests.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    served = mlflow.pyfunc.load_model(f"models:/{logged.model_id}")
    example = served.input_example
    np.testing.assert_allclose(np.ravel(model(example)), np.ravel(served.predict(example)["output"]), rtol=1e-4)
    metrics = {one.key: one for one in logged.metrics}
    (validated,) = (one for one in client.get_metric_history(run_id, "validation/loss") if one.step == 6)
    assert metrics["validation/loss"].value == validated.value
    assert metrics.keys() == {"train/loss", "train/auc", "validation/loss", "validation/auc"}
    digests = {metrics[key].dataset_digest for key in ("train/loss", "validation/loss")}
    assert digests == {one.dataset.digest for one in stored.inputs.dataset_inputs}
    checkpoints = {file.path for file in client.list_artifacts(run_id, "checkpoints")}
    assert checkpoints == {"checkpoints/model.ckpt-3", "checkpoints/model.ckpt-6"}
    sizes = {one.tags[0].value: json.loads(one.dataset.profile) for one in stored.inputs.dataset_inputs}
    assert sizes == {"training": {"num_rows": 1000}, "validation": {"num_rows": 64}}
