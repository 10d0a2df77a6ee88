"""Code shared by the Keras peers: the configured model, and its data as a `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from hydra.utils import instantiate

from benchmarks.peers.task import Task

OWN_KEYS = ("labels", "sparse_updates")  # keys that only our runs read; the model's function does not accept them


def make_model(task: Task) -> keras.Model:
    """Returns the compiled model, with the same initial weights as in our runs."""
    keras.utils.set_random_seed(task.config.train.seed)
    return instantiate({key: value for key, value in task.config.model.items() if key not in OWN_KEYS})


def examples(task: Task) -> tf.data.Dataset:
    """Returns this rank's batches, (inputs, labels), in the order of our runs. As in our runs, each batch is prefetched
    during the previous step."""
    labels = task.config.model.labels
    specs = {
        name: tf.TensorSpec([task.config.data.batch_size, *feature.shape], feature.dtype)
        for name, feature in task.dataset.features.items()
    }

    def batches() -> Iterator[tuple[dict[str, Any], Any]]:
        for number in range(task.steps):
            batch = task.batch(number)
            yield {name: array for name, array in batch.items() if name != labels}, batch[labels]

    signature = ({name: spec for name, spec in specs.items() if name != labels}, specs[labels])
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(tf.data.AUTOTUNE)


def one_thread() -> None:
    """Limits TensorFlow to one compute thread, as in our workers."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
