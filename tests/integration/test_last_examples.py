"""A model for one batch size validates each example of a tf.data.Dataset once, with any number of workers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from tests.integration.runs import Run, launch

ROOT = Path(__file__).parents[2]
# Not a multiple of a batch of 12 or of its half, third or whole; in batches of 7, some of which are cut.
HELD_BACK = 41
CODE = '''
"""Data in whole batches for training, and models for one batch size."""

import keras
import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from parallax_runner import metrics

ROWS, HELD_BACK = 20, 41


def examples(count, seed):
    """Lists of 1 to 4 words, a group and a label, which is 0 or 1."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 5, count)
    words = draw.integers(1, ROWS, lengths.sum()).astype("int32")
    return words, lengths, draw.integers(0, 5, count), draw.integers(0, 2, count).astype("float32")


def pipeline(count, seed, kind):
    words, lengths, group, label = examples(count, seed)
    ragged = tf.RaggedTensor.from_row_lengths(words, lengths)
    given = {"words": ragged, "group": group, "label": label}
    if kind == "dense":
        given["words"] = ragged.to_tensor(shape=[None, 4])
    if kind == "sparse":
        given["words"] = ragged.to_sparse()
    found = tf.data.Dataset.from_tensor_slices(given)
    if kind != "padded":
        return found
    return found.map(lambda one: {**one, "words": one["words"] + 0})


def make_data(kind):
    train, held = pipeline(48, 1, kind), pipeline(HELD_BACK, 2, kind)
    if kind == "padded":
        to_length = {"words": [None], "group": [], "label": []}
        return train.padded_batch(12, to_length, drop_remainder=True), held.padded_batch(7, to_length)
    return train.batch(12, drop_remainder=True), held.batch(7)


def scores_of(words, table, weights, size):
    """The mean of the words' rows, times weights. The number of examples is a constant."""
    if isinstance(words, tf.RaggedTensor):
        words = words.to_tensor()
    if isinstance(words, tf.SparseTensor):
        words = tf.sparse.to_dense(words)
    is_word = tf.cast(words > 0, "float32")[..., None]
    sums = tf.reduce_sum(tf.gather(table, words) * is_word, axis=1)
    means = tf.reshape(sums / tf.reduce_sum(is_word, axis=1), [size, 3])
    return tf.linalg.matvec(means, weights)


def metrics_of(features, score):
    label = tf.cast(features["label"], "int32")
    return {
        "accuracy": metrics.accuracy(label, tf.cast(score > 0.5, "int32")),
        "gauc": metrics.gauc(label, score, features["group"]),
    }


def build(features, optimizer, compares=False):
    label = features["label"]
    table = v1.get_variable("table", [ROWS, 3], initializer=v1.random_normal_initializer(seed=1))
    weights = v1.get_variable("weights", [3], initializer=v1.random_normal_initializer(seed=2))
    size = int(label.shape[0])
    score = scores_of(features["words"], table, weights, size)
    if compares:
        score -= tf.reduce_max(score)
    loss = tf.reduce_sum(tf.square(score - label)) / size
    train_op = optimizer.minimize(loss)
    return {"loss": loss, "train_op": train_op, "validation_loss": loss, "metrics": metrics_of(features, score)}


def make_step():
    draw = np.random.default_rng(1)
    table = tf.Variable(draw.normal(size=[ROWS, 3]).astype("float32"), name="table")
    weights = tf.Variable(draw.normal(size=[3]).astype("float32"), name="weights")

    def evaluate(batch):
        size = int(batch["label"].shape[0])
        score = scores_of(batch["words"], table, weights, size)
        loss = tf.reduce_sum(tf.square(score - batch["label"])) / size
        return {"loss": loss, "metrics": metrics_of(batch, score)}

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = evaluate(batch)["loss"]
        slopes = tape.gradient(loss, [table, weights])
        table.scatter_sub(tf.IndexedSlices(0.1 * slopes[0].values, slopes[0].indices))
        weights.assign_sub(0.1 * slopes[1])
        return loss

    return step, evaluate


class OneSize(keras.Model):
    """Its call does not accept an unknown number of examples."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(ROWS, 3, name="table")
        self.top = keras.layers.Dense(1, activation="sigmoid", name="top")

    def call(self, x):
        words = x["words"] if isinstance(x, dict) else x  # a single feature has no name
        return self.top(tf.reshape(self.table(words), [int(words.shape[0]), 12]))


def make_keras():
    keras.utils.set_random_seed(3)
    made = OneSize()
    right = keras.metrics.BinaryAccuracy(name="acc")
    made.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=[right])
    return made


def keras_data():
    def pair(one):
        return {"words": one["words"]}, one["label"][None]

    train, held = make_data("dense")
    return train.unbatch().map(pair).batch(12, drop_remainder=True), held.unbatch().map(pair).batch(7)
'''
FIT = """
import json
import sys

import numpy as np

import last_examples as own
import parallax_runner

kind, workers, left = sys.argv[1], int(sys.argv[2]), sys.argv[3]
train, held = own.keras_data()
if kind == "arrays":
    held = tuple(np.concatenate(part) for part in zip(*[(x["words"], y) for x, y in held]))
    held = ({"words": held[0]}, held[1])
model = own.make_keras()
history = parallax_runner.fit(
    model, train, epochs=2, validation_data=held, workers=workers, comm="sharded", overrides=["tracking=off"]
)
table = model.table.embeddings.numpy().tolist()
top = [one.numpy().tolist() for one in model.top.weights]
with open(left, "w") as file:
    json.dump({"history": history.history, "table": table, "top": top}, file)
"""
CONFIGURED = {
    "model/v1": "_target_: last_examples.build\ncompares: false\n",
    "model/step": "_target_: last_examples.make_step\n",
    "model/one_size": "_target_: last_examples.make_keras\nlabels: y\n",
    "data/lists": "_target_: last_examples.make_data\nkind: dense\n",
    "data/words_and_labels": "_target_: last_examples.keras_data\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "last_examples.py").write_text(CODE)
    (tmp_path / "fit.py").write_text(FIT)
    for name, text in CONFIGURED.items():
        file = tmp_path / "myconf" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def held_back() -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """The words, groups and labels of the validation examples."""
    made: dict[str, Any] = {}
    exec(CODE, made)
    words, lengths, group, label = made["examples"](HELD_BACK, 2)
    return np.split(words, np.cumsum(lengths)[:-1]), group, label


def expected_of_graph(checkpoint: str) -> dict[str, float]:
    """Returns the loss and the number of right answers, of all examples at once."""
    reader = tf.train.load_checkpoint(checkpoint)
    table, weights = (reader.get_tensor(name).astype(float) for name in ("table", "weights"))
    words, _, label = held_back()
    scores = np.array([table[one].mean(axis=0) @ weights for one in words])
    return {"loss": float(np.square(scores - label).mean()), "right": int(((scores > 0.5) == label).sum())}


def expected_of_keras(table: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> dict[str, float]:
    words, _, label = held_back()
    padded = np.array([np.pad(one, (0, 4 - len(one))) for one in words])
    scores = 1 / (1 + np.exp(-(table[padded].reshape(HELD_BACK, 12) @ kernel + bias)[:, 0]))
    losses = -np.where(label > 0, np.log(scores), np.log(1 - scores))
    return {"loss": float(losses.mean()), "right": int(((scores > 0.5) == label).sum())}


def check(found: dict[str, float], expected: dict[str, float], accuracy: str) -> None:
    assert found["validation_loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert round(HELD_BACK * found[f"validation_{accuracy}"], 4) == expected["right"]  # Keras divides in float32


def start(project: Path, name: str, *lines: str) -> Run:
    given = (f"--config-dir={project / 'myconf'}", "tracking=off", *lines)
    return launch(*given, cwd=project, python_path=project, name=name)


@pytest.mark.parametrize("kind", ["v1-dense", "v1-padded", "step-ragged", "step-sparse"])
def test_a_graph_and_a_step(kind: str, project: Path) -> None:
    model, _, features = kind.partition("-")
    lines = (f"model={model}", "data=lists", f"data.kind={features}", "train.steps=4")
    trained = start(project, "train", *lines, "comm=hybrid", "train.validate_steps=2").expect_success()
    expected = expected_of_graph(trained.summary["ckpt_path"])
    check(trained.summary, expected, "accuracy")
    for workers, comm in ((1, "local"), (2, "mpi"), (3, "sharded")):
        evaluate = ("action=evaluate", f"ckpt.resume={trained.run_dir}", f"cluster.workers={workers}", f"comm={comm}")
        done = start(project, f"evaluate_{workers}", *lines, *evaluate).expect_success()
        check(done.summary, expected, "accuracy")
        assert done.summary["validation_gauc"] == pytest.approx(trained.summary["validation_gauc"], rel=1e-6)


def test_a_keras_model(project: Path) -> None:
    lines = ("model=one_size", "data=words_and_labels", "train.steps=4")
    trained = start(project, "train", *lines, "comm=mpi", "train.validate_steps=2").expect_success()
    reader = tf.train.load_checkpoint(trained.summary["ckpt_path"])
    names = ("table/embeddings", "top/kernel", "top/bias")
    by_name = {name: next(key for key in reader.get_variable_to_shape_map() if key.endswith(name)) for name in names}
    expected = expected_of_keras(*[reader.get_tensor(by_name[name]).astype(float) for name in names])
    check(trained.summary, expected, "acc")
    for workers, comm in ((1, "local"), (3, "sharded")):
        evaluate = ("action=evaluate", f"ckpt.resume={trained.run_dir}", f"cluster.workers={workers}", f"comm={comm}")
        check(start(project, f"evaluate_{workers}", *lines, *evaluate).expect_success().summary, expected, "acc")


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["tf.data", "arrays"])
def test_fit(kind: str, workers: int, project: Path) -> None:
    left = project / "left.json"
    env = {**os.environ, **forked.environment(), "PYTHONPATH": f"{ROOT}:{project}"}
    command = [str(forked.STUB), str(project / "fit.py"), kind, str(workers), str(left)]
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(left.read_text())
    expected = expected_of_keras(np.array(found["table"]), *[np.array(one) for one in found["top"]])
    last = {f"validation_{name.removeprefix('val_')}": values[-1] for name, values in found["history"].items()}
    check(last, expected, "acc")


def test_values_that_are_no_means_are_told_in_a_training_and_refused_in_an_evaluation(project: Path) -> None:
    lines = ("model=v1", "data=lists", "model.compares=true", "train.steps=2", "cluster.workers=2", "comm=mpi")
    trained = start(project, "train", *lines).expect_success()
    assert (
        trained.stderr.count("5 examples are left out of each validation: the model accepts batches of one size") == 1
    )
    assert trained.summary["validation_left_out"] == 5
    done = start(project, "evaluate", *lines, "action=evaluate", f"ckpt.resume={trained.run_dir}")
    assert done.exit_status != 0 and "Traceback" not in done.stderr
    assert done.stderr.count("the last 5 examples cannot be evaluated: the model accepts only batches of 6") == 1
    assert done.summary["status"] == "failed" and done.summary.get("validation_loss") is None
