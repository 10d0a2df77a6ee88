"""Models and data that record their inputs; imported by runs of test_resume.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from models import lm
from parallax_runner.data import text
from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Dataset

ROWS, WIDTH, IDS = 100, 4, 3


def build_deterministic(features: dict[str, tf.Tensor], optimizer: tf.train.Optimizer) -> dict[str, Any]:
    """Builds a model with one sparse and one dense variable, and nothing random."""
    table = tf.get_variable("table", [ROWS, WIDTH], initializer=tf.random_uniform_initializer(-1.0, 1.0))
    weights = tf.get_variable("weights", [IDS, WIDTH], initializer=tf.ones_initializer())
    predicted = tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]) * weights, axis=[1, 2])
    loss = tf.reduce_mean(tf.square(predicted - features["y"]))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op, "validation_loss": loss}


def load_rows(*, examples: int, seed: int) -> Dataset:
    """Returns examples with features `ids` [IDS] and `y`."""
    draw = np.random.default_rng(seed)
    train = {"ids": draw.integers(0, ROWS, (examples, IDS)).astype(np.int32), "y": draw.normal(size=examples)}
    train["y"] = train["y"].astype(np.float32)
    return ArrayDataset(
        train=train, validation={name: rows[:100] for name, rows in train.items()}, words_per_example=None, seed=seed
    )


def build_remembering(
    features: dict[str, tf.Tensor], optimizer: tf.train.Optimizer, *, steps: int, **sizes: Any
) -> dict[str, Any]:
    """Builds the language model, with each step's draws and inputs in the variables «drawn» and «read» [steps, …]."""
    result = lm.build(features, optimizer, **sizes)
    (sampler,) = [op for op in tf.get_default_graph().get_operations() if op.type == "LogUniformCandidateSampler"]
    count = tf.get_variable("count", [], tf.int64, tf.zeros_initializer(), trainable=False, use_resource=True)
    row = count.assign_add(1, read_value=True) - 1
    remembered = []
    for name, value in (("drawn", sampler.outputs[0]), ("read", features["words"])):
        history = tf.get_variable(
            name, [steps, *value.shape], value.dtype, tf.zeros_initializer(), trainable=False, use_resource=True
        )
        remembered.append(
            tf.raw_ops.ResourceScatterNdUpdate(ref=history.handle, indices=[[row]], updates=tf.expand_dims(value, 0))
        )
    return result | {"train_op": tf.group(result["train_op"], *remembered)}


def load_logged(*, log: str, **arguments: Any) -> Dataset:
    """Returns sentences as `data=text` does; each rank writes the positions that it is asked for to the folder
    `log`."""
    dataset = text.load(**arguments)
    asked = dataset.train_batch

    def train_batch(start: int, size: int) -> dict[str, np.ndarray]:
        Path(log).mkdir(parents=True, exist_ok=True)
        with (Path(log) / f"rank_{os.environ.get('OMPI_COMM_WORLD_RANK', '0')}.txt").open("a") as file:
            file.write("".join(f"{number}\n" for number in range(start, start + size)))
        return asked(start, size)

    dataset.train_batch = train_batch  # type: ignore[method-assign]
    return dataset
