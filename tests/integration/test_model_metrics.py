"""Metrics that models and steps return: two workers compute the same as one device on the same examples, and a metric
decides which checkpoint is the best and when the training ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.runs import Run, launch

MODULE = '''
"""Clicks from a table and a weight, as a TensorFlow 1 graph and as a step with a tape."""

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from parallax_runner import metrics
from parallax_runner.data.arrays import ArrayDataset


def load(*, seed):
    draw = np.random.default_rng(seed)
    id = draw.integers(0, 40, 640).astype(np.int32)
    label = (id % 3 + draw.normal(size=640) > 1.5).astype(np.float32)
    train, validation = ({"id": id[part], "label": label[part]} for part in (slice(512), slice(512, None)))
    return ArrayDataset(train=train, validation=validation, words_per_example=None, seed=seed)


def losses(label, logit):
    return tf.nn.sigmoid_cross_entropy_with_logits(label, logit)


def found(label, logit, id):
    auc, size = metrics.auc(label, logit, from_logits=True), metrics.mean(tf.abs(logit))
    # A label depends on the rest of an id, and groups on the id divided by three, so that a group has both classes.
    return {"auc": auc, "size": size, "gauc": metrics.gauc(label, logit, id // 3)}


def build(features, optimizer):
    table = v1.get_variable("table", [40, 4], initializer=v1.random_uniform_initializer(-0.1, 0.1))
    weight = v1.get_variable("weight", [4, 1], initializer=v1.ones_initializer())
    logit = tf.squeeze(tf.matmul(tf.nn.embedding_lookup(table, features["id"]), weight), 1)
    loss = tf.reduce_mean(losses(features["label"], logit))
    train_op = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
    found_here = found(features["label"], logit, features["id"])
    return {"loss": loss, "train_op": train_op, "validation_loss": loss, "metrics": found_here}


def make(*, rate=0.5):
    table = tf.Variable(tf.random.stateless_uniform([40, 4], seed=[1, 2], minval=-0.1, maxval=0.1), name="table")
    weight = tf.Variable(tf.ones([4, 1]), name="weight")

    def logit_of(batch):
        return tf.squeeze(tf.matmul(tf.nn.embedding_lookup(table, batch["id"]), weight), 1)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            logit = logit_of(batch)
            loss = tf.reduce_mean(losses(batch["label"], logit))
        slopes = tape.gradient(loss, [table, weight])
        table.scatter_sub(tf.IndexedSlices(rate * slopes[0].values, slopes[0].indices))
        weight.assign_sub(rate * slopes[1])
        return {"loss": loss, "metrics": found(batch["label"], logit, batch["id"])}

    @tf.function
    def evaluate(batch):
        logit = logit_of(batch)
        return {
            "loss": tf.reduce_mean(losses(batch["label"], logit)),
            "metrics": found(batch["label"], logit, batch["id"]),
            "outputs": {"probability": tf.sigmoid(logit)},
        }

    return step, evaluate
'''
STEPS, BATCH = 6, 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clicked.py").write_text(MODULE)
    for group, choice, target in (("model", "graph", "build"), ("model", "step", "make"), ("data", "clicked", "load")):
        (tmp_path / "myconf" / group).mkdir(parents=True, exist_ok=True)
        more = "seed: 3\nbatch_size: 16\n" if group == "data" else ""
        (tmp_path / "myconf" / group / f"{choice}.yaml").write_text(f"_target_: clicked.{target}\n{more}")
    return tmp_path


def run(folder: Path, *arguments: str, name: str = "out") -> Run:
    optimizer = ("optimizer=gradient_descent",) if "model=graph" in arguments else ()
    fixed = ("--config-dir", "myconf", "data=clicked", f"train.steps={STEPS}", "tracking=off")
    return launch(*fixed, *optimizer, *arguments, cwd=folder, name=name)


@pytest.mark.parametrize(("model", "comm"), [("graph", "hybrid"), ("step", "sharded")])
def test_two_workers_find_what_one_finds(folder: Path, model: str, comm: str) -> None:
    together = run(folder, f"model={model}", f"comm={comm}", "train.log_every=3").expect_success()
    whole = f"data.batch_size={2 * BATCH}"
    alone = run(folder, f"model={model}", "comm=local", whole, "train.log_every=3", name="one").expect_success()
    names = [f"{phase}_{name}" for phase in ("train", "validation") for name in ("auc", "size")]
    of_groups = ("validation_gauc", "validation_gauc_left_out")
    found = {name: together.summary[name] for name in (*names, *of_groups, "validation_loss")}
    assert found == pytest.approx({name: alone.summary[name] for name in found}, rel=1e-5)
    assert 0.5 < found["validation_auc"] < 1 and found["train_auc"] != found["validation_auc"]
    assert 0.5 < found["validation_gauc"] < 1 and "train_gauc" not in together.summary
    assert "  auc 0." in together.stderr and "  size " in together.stderr
    assert together.summary["objective"] == "validation loss"


def test_a_metric_decides(folder: Path) -> None:
    """With a learning rate of zero no validation is better than the first one."""
    chosen = ("train.objective=auc", "train.validate_steps=2", "train.patience=2", "train.log_every=1")
    ended = run(folder, "model=step", "+model.rate=0.0", "comm=hybrid", "train.steps=20", *chosen).expect_success()
    assert ended.summary["steps"] == 6
    best = json.loads((ended.ckpt_dir / "best.json").read_text())
    assert (best["step"], best["objective"]) == (2, "auc")
    assert best["value"] == ended.summary["validation_auc"] == ended.summary["objective_value"]
    assert ended.summary["objective_direction"] == "maximize"
    assert f", auc {best['value']:.4g};" in ended.stderr


def test_a_run_that_goes_on_counts_the_validations_before(folder: Path) -> None:
    """The first run ends after its second validation, the second one after the fourth, and the third one at once."""
    chosen = ("train.objective=auc", "train.validate_steps=2", "train.patience=3")
    lines = ("model=step", "+model.rate=0.0", "comm=hybrid", *chosen)
    assert run(folder, *lines, "train.steps=4", name="patient").expect_success().summary["steps"] == 4
    second = run(folder, *lines, "train.steps=20", name="patient").expect_success()
    assert (second.summary["first_step"], second.summary["steps"]) == (4, 8)
    third = run(folder, *lines, "train.steps=20", name="patient").expect_success()
    assert (third.summary["first_step"], third.summary["steps"]) == (8, 8)
    assert third.stderr.count("training has ended at step 8: 3 validations (train.patience) found nothing better") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("train.objective=acu",),
            "train.objective=acu (command line): validations of this model compute only auc, gauc, loss, size",
        ),
        (("train.objective=size",), "train.objective=size (command line): the direction of this metric is unknown"),
        (("train.direction=maximize",), "train.direction=maximize (command line): this key needs train.objective"),
        (("train.patience=1",), "train.patience=1 (command line): patience counts validations"),
    ],
)
def test_what_cannot_decide_is_refused(folder: Path, arguments: tuple[str, ...], told: str) -> None:
    refused = run(folder, "model=step", "comm=local", *arguments)
    assert refused.exit_status == 2
    assert told in refused.stderr
