"""A dataset, models and checkpoints for tests of what is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.export.saved_model import export_saved_model
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

Features = dict[str, tf.Tensor]
Model = Callable[[Features], Mapping[str, Any]]

BATCH, WIDTH, ROWS = 4, 3, 12
RANDOM = np.random.default_rng(1)


def _examples(count: int) -> dict[str, np.ndarray]:
    return {
        "ids": RANDOM.integers(0, ROWS, count).astype(np.int32),
        "x": RANDOM.normal(size=(count, WIDTH)).astype(np.float32),
        "y": RANDOM.normal(size=count).astype(np.float32),
    }


DATASET = ArrayDataset(train=_examples(20), validation=_examples(10), words_per_example=None, seed=1)


def train(loss: tf.Tensor) -> tf.Operation:
    """One step of Adam, which has slots and accumulators."""
    return tf.train.AdamOptimizer(0.1).minimize(loss, global_step=tf.train.get_or_create_global_step())


def built(model: Model, batch_size: int | None = BATCH) -> SingleDeviceGraph:
    """The model's graph, for a batch size or, with None, for any."""
    shapes = {name: ((batch_size, *feature.shape), feature.dtype) for name, feature in DATASET.features.items()}
    return capture(model, shapes, seed=1)


def trained(single: SingleDeviceGraph, folder: Path, fetch: Mapping[str, str]) -> tuple[Path, dict[str, np.ndarray]]:
    """Trains three steps in plain TensorFlow and saves a checkpoint.

    Returns its prefix, and the tensors `fetch` for the first BATCH validation examples.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(single.meta_graph)
        session.run(tf.global_variables_initializer())
        for step in range(3):
            session.run(single.train_op, fed(single, DATASET.train_batch(BATCH * step, BATCH)))
        prefix = tf.train.Saver().save(session, str(folder / "model.ckpt-3"))
        return Path(prefix), session.run(dict(fetch), fed(single, DATASET.validation_batch(0, BATCH)))


def fed(single: SingleDeviceGraph, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By placeholder, those that the model has."""
    return {single.features[name]: array for name, array in batch.items()}


def exported(model: Model, tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Exports what `trained` has saved; returns the SavedModel and the training graph's own outputs."""
    single = built(model)
    fetch = single.outputs or {"validation_loss": single.validation_loss or single.loss}
    prefix, expected = trained(single, tmp_path / "ckpt", fetch)
    return (
        export_saved_model(single, lambda: built(model, None), DATASET, prefix=prefix, folder=tmp_path / "saved_model"),
        expected,
    )


def served(folder: Path, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """What TensorFlow 2 makes of the SavedModel's signature."""
    loaded = tf2.saved_model.load(str(folder))
    outputs = loaded.signatures["serving_default"](**{name: tf2.constant(array) for name, array in inputs.items()})
    return {name: tensor.numpy() for name, tensor in outputs.items()}
