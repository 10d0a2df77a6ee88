"""Adds a dataset to the inputs of a run, which MLflow shows under "Datasets"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

CONTEXT_TAG = "mlflow.data.context"


def send(client: MlflowClient, run_id: str, fields: Mapping[str, Any]) -> None:
    """Adds the dataset of a journal entry to the run. MLflow keeps only one dataset for each name and digest."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    tensors = [
        {"name": name, "type": "tensor", "tensor-spec": {"dtype": feature["dtype"], "shape": _batch_shape(feature)}}
        for name, feature in fields["features"].items()
    ]
    dataset = Dataset(
        name=fields["name"],
        digest=fields["digest"],
        # "code" is MLflow's source type for generated data and accepts arbitrary tags.
        source_type="code",
        source=json.dumps({"tags": {key: str(value) for key, value in fields["source"].items()}}),
        schema=json.dumps({"mlflow_tensorspec": {"features": json.dumps(tensors), "targets": None}}),
        profile=json.dumps({"num_rows": fields["examples"]}),
    )
    client.log_inputs(run_id, datasets=[DatasetInput(dataset, [InputTag(CONTEXT_TAG, fields["context"])])])


def _batch_shape(feature: Mapping[str, Any]) -> list[int]:
    """Returns the shape of a feature in a batch, with -1 for each unknown size."""
    return [-1 if size is None else size for size in (None, *feature["shape"])]
