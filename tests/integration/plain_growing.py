"""Trains tables whose keys come and go in plain Keras, on one device:

    python -m tests.integration.plain_growing FOLDER OPTIMIZER

Writes the variables after each of the steps ENDS to `plain_STEP.npz`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.integration.growing_models import BATCH, load_passing_users, make_two_passing

SEED = 5
ENDS = (4, 7, 12)


def train(model: keras.Model, batch: dict[str, np.ndarray]) -> None:
    """Trains a step. Merges the gradient's slices with the same row, as the runner does (docs/repeated-ids.md)."""
    x = {name: tf.constant(batch[name]) for name in ("item", "user")}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - batch["y"]))
    gradients = tape.gradient(loss, model.trainable_variables)
    merged = [tf.convert_to_tensor(one) for one in gradients]
    model.optimizer.apply_gradients(zip(merged, model.trainable_variables, strict=True))


def values_of(model: keras.Model) -> dict[str, Any]:
    """Returns the variables of a model and of its optimizer by their paths."""
    weights = [*model.trainable_variables, *model.non_trainable_variables]
    return {one.path: one.numpy() for one in (*weights, *model.optimizer.variables)}


def main(folder: Path, optimizer: str) -> None:
    """Trains, and writes the values."""
    model, data = make_two_passing(optimizer), load_passing_users(SEED)
    for step in range(max(ENDS)):
        train(model, data.train_batch(step * BATCH, BATCH))
        if step + 1 in ENDS:
            np.savez(folder / f"plain_{step + 1}.npz", **values_of(model))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
