"""The inputs of a served model: the features, or the raw values from which the model's data computes its features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from parallax_runner.data.dataset import Dataset, FromRaw, Shared
from parallax_runner.export.inference import InferenceGraph
from parallax_runner.graph.components import placeholder_name

RAW = "raw"  # the scope of the ops that compute features


def imported(
    served: InferenceGraph, dataset: Dataset, examples: int
) -> tuple[dict[str, tf.Tensor], Mapping[str, np.ndarray]]:
    """Imports the graph into the current one. Returns the inputs, and `examples` examples for them, by name.

    If the dataset computes its features from raw values, so does the graph, and its inputs are the raw values.
    """
    if isinstance(dataset, FromRaw):
        return _imported_behind_raw(served, dataset, examples)
    tf.import_graph_def(served.graph_def, name="")
    graph = tf.get_default_graph()
    inputs = {name: graph.get_tensor_by_name(tensor) for name, tensor in served.inputs.items()}
    return inputs, {name: array for name, array in _first_examples(dataset, examples).items() if name in inputs}


def _imported_behind_raw(
    served: InferenceGraph, dataset: Any, examples: int
) -> tuple[dict[str, tf.Tensor], Mapping[str, np.ndarray]]:
    features = _features_of(served, dataset)
    specs = dataset.raw_inputs(features, tf2)
    with tf.name_scope(RAW):
        inputs = {
            name: tf.placeholder(spec.dtype, spec.shape, name=placeholder_name(name)) for name, spec in specs.items()
        }
        made = dataset.served_features(features, inputs, tf2)
    tf.import_graph_def(
        served.graph_def, input_map={tensor: made[name] for name, tensor in served.inputs.items()}, name=""
    )
    return inputs, dataset.raw_examples(features, examples)


def _features_of(served: InferenceGraph, dataset: Dataset) -> list[str]:
    """Returns the features that the graph needs. An input can be a component of a feature."""
    inputs = {
        name: [name, *(f"{name}/{one}" for one in feature.components)] for name, feature in dataset.features.items()
    }
    return [name for name, arrays in inputs.items() if not served.inputs.keys().isdisjoint(arrays)]


def _first_examples(dataset: Dataset, count: int) -> dict[str, np.ndarray]:
    # The validation examples of a `Shared` dataset can be read only through one of its shares.
    if not isinstance(dataset, Shared) and count <= dataset.validation_size:
        return dataset.validation_batch(0, count)
    return dataset.train_batch(0, count)
