"""A Keras script whose phases take long enough to be hit: `train_in_phases.py '{"comm": "sharded", "overrides": []}'`.

Each phase that runs in this process writes a file `in-PHASE` when it begins. At the end, the weights are in `left.npz`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import parallax_runner

EPOCHS, STEPS, BATCH = 3, 6, 8
PHASE_SECS = 0.7
asked = json.loads(sys.argv[1])


def dwell(phase: str) -> None:
    """Marks that a phase has begun, and stays in it for a moment."""
    Path(f"in-{phase}").touch()
    time.sleep(PHASE_SECS)


class Slow(keras.layers.Layer):
    """Takes long to be captured."""

    def call(self, values: Any) -> Any:
        """Returns the values."""
        if Path("begun").exists():
            dwell("capture")
        return values


class Dwelling(keras.callbacks.Callback):
    """Takes long in its methods."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Dwells in the second epoch."""
        if epoch == 1:
            dwell("callback")

    def on_train_end(self, logs: Any = None) -> None:
        """Dwells."""
        dwell("end")


def slowly(features: Any, label: Any) -> Any:
    """Takes some milliseconds for an example, so that a validation takes long."""
    zero = tf.reduce_sum(tf.linalg.matmul(tf.ones([700, 700]), tf.ones([700, 700]))) * 0
    return features + tf.cast(tf.cast(zero, tf.int32), features.dtype), label


keras.utils.set_random_seed(7)
draws = np.random.default_rng(7)
# Far more than is trained, so that writing the data takes long.
ids = draws.integers(0, 200, size=(4_000_000, 3), dtype="int32")
labels = (ids.sum(1) % 2).astype("float32")
rows = STEPS * BATCH
train = tf.data.Dataset.from_tensor_slices((ids, labels)).take(rows).batch(BATCH)
validation = tf.data.Dataset.from_tensor_slices((ids[:64], labels[:64])).map(slowly).batch(BATCH)
model_input = keras.Input([3], dtype="int32")
embedded = keras.layers.Flatten()(keras.layers.Embedding(200, 4)(model_input))
model = keras.Model(model_input, keras.layers.Dense(1, activation="sigmoid")(Slow()(embedded)))
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
Path("begun").touch()
history = parallax_runner.fit(
    model,
    train,
    workers=2,
    comm=asked["comm"],
    epochs=EPOCHS,
    validation_data=validation,
    callbacks=[Dwelling()],
    overrides=["run_dir=run", "ckpt.save_steps=2", "train.log_every=1", *asked["overrides"]],
)
np.savez("left.npz", *model.get_weights(), loss=history.history["loss"], val_loss=history.history["val_loss"])
