"""Vocabularies that grow, by the command line: trained by any number of ranks, resumed, verified, served, refused."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf

from tests.growing_keys import initial_row
from tests.integration.runs import Run, launch
from tests.shared import shared

CODE = '''
"""A model with two vocabularies that grow, and its data."""

import keras
import numpy as np
import tensorflow as tf

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.layers import GrowingEmbedding, growing_lookup


def make_model(capacity, overflow):
    item, user = keras.Input([3], dtype="int64", name="item"), keras.Input([], dtype="int64", name="user")
    table = GrowingEmbedding(4, capacity, overflow=overflow, seed=3, name="items")
    users = GrowingEmbedding(2, 8192, seed=4, name="users")(user)
    both = keras.layers.Concatenate()([keras.layers.Flatten()(table(item)), users])
    model = keras.Model({"item": item, "user": user}, keras.layers.Dense(1)(both))
    model.compile("adam", "mse")
    return model


def make_data(seed):
    draw = np.random.default_rng(5)
    items = draw.zipf(1.3, size=(600, 3)) % 997 * 7919 - 40000
    users = np.arange(600, dtype="int64") * 1000003 % 211
    labels = draw.normal(size=(600, 1)).astype("float32")
    arrays = {"item": items.astype("int64"), "user": users, "y": labels}
    train, validation = ({name: array[part] for name, array in arrays.items()} for part in (np.s_[:480], np.s_[480:]))
    return ArrayDataset(train=train, validation=validation, words_per_example=None, seed=seed)


def make_step(training):
    table, dense = GrowingEmbedding(4, 16384, seed=3, name="items"), keras.layers.Dense(1)
    optimizer = keras.optimizers.SGD(0.1)

    def step(batch):
        with tf.GradientTape() as tape:
            rows = keras.ops.mean(table(batch["item"], training=training), axis=1)
            loss = tf.reduce_mean(tf.square(dense(rows) - batch["y"]))
        variables = [*table.trainable_variables, *dense.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return step


def build_graph(features, optimizer):
    """Two lookups of a table in a step, and two others for validation."""
    v1 = tf.compat.v1

    def loss_of(training):
        table = {"name": "items", "dim": 4, "capacity": 16384, "seed": 3, "training": training}
        items, users = growing_lookup(features["item"], **table), growing_lookup(features["user"], **table)
        return v1.reduce_mean(v1.square(v1.reduce_sum(items, [1, 2]) - v1.reduce_sum(users, 1) - features["y"][:, 0]))

    loss = loss_of(True)
    train_op = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op, "validation_loss": loss_of(False)}
'''
MODEL = "_target_: grow.make_model\ncapacity: 16384\noverflow: error\nlabels: y\n"
DATA = "_target_: grow.make_data\nseed: 5\nbatch_size: 24\n"
STEPS, BATCH = 12, 24

pytestmark = pytest.mark.timeout(1200)


def project(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "grow.py").write_text(CODE)
    for group, text in (("model", MODEL), ("data", DATA)):
        (folder / "myconf" / group).mkdir(parents=True)
        (folder / "myconf" / group / "grow.yaml").write_text(text)
    others = {
        "step": "_target_: grow.make_step\ntraining: true\n",
        "step_without_inserts": "_target_: grow.make_step\ntraining: false\n",
        "graph": "_target_: grow.build_graph\n",
    }
    for name, text in others.items():
        (folder / "myconf" / "model" / f"{name}.yaml").write_text(text)
    return folder


def run(folder: Path, name: str, *arguments: str) -> Run:
    fixed = (f"--config-dir={folder / 'myconf'}", "model=grow", "data=grow", "tracking=off", "comm=sharded")
    return launch(*fixed, *arguments, cwd=folder, name=name, python_path=folder)


def ranks(number: int) -> tuple[str, ...]:
    """Returns the settings for this number of ranks, with the same examples in each step."""
    return f"cluster.workers={number}", f"data.batch_size={BATCH // number}"


def checkpoint(done: Run) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(done.summary["ckpt_path"])
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def by_key(saved: dict[str, np.ndarray], table: str, rows: str) -> dict[int, np.ndarray]:
    """Returns the rows of the variable `rows`, a table or one of its slots, by key."""
    keys, fill = saved[f"{table}/keys"], saved[f"{table}/fill"]
    places = keys.shape[1]
    return {
        int(keys[bucket, place]): saved[rows][bucket * places + place]
        for bucket in range(len(fill))
        for place in range(fill[bucket])
    }


def trained_on(folder: Path, steps: int) -> dict[str, set[int]]:
    """Returns the keys of the first steps, by table."""
    batch = dataset(folder).train_batch(0, BATCH * steps)
    return {"items": set(batch["item"].ravel().tolist()), "users": set(batch["user"].tolist())}


def dataset(folder: Path) -> Any:
    """Returns the data of the project."""
    spec = importlib.util.spec_from_file_location("grow", folder / "grow.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make_data(5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which one process has trained («whole»), and three ranks, then two, then one («third»)."""

    def train(folder: Path) -> Path:
        project(folder)
        run(folder, "whole", "comm=local", f"train.steps={STEPS}").expect_success()
        first = run(folder, "first", *ranks(3), "train.steps=4").expect_success()
        resumed = f"ckpt.resume={first.run_dir}"
        second = run(folder, "second", *ranks(2), "train.steps=8", resumed).expect_success()
        resumed = f"ckpt.resume={second.run_dir}"
        run(folder, "third", *ranks(1), f"train.steps={STEPS}", resumed).expect_success()
        return folder

    return shared(tmp_path_factory, "trained_with_growth", train)


def of(folder: Path, name: str) -> Run:
    return Run(folder / name, 0, "", "", 0.0)


def test_three_then_two_then_one_rank_equal_one_process_by_key(folder: Path) -> None:
    whole, resumed = checkpoint(of(folder, "whole")), checkpoint(of(folder, "third"))
    assert whole.keys() == resumed.keys()
    for table, seen in trained_on(folder, STEPS).items():
        for rows in (f"{table}/rows", f"adam/{table}_rows_momentum", f"adam/{table}_rows_velocity"):
            expected, found = by_key(whole, table, rows), by_key(resumed, table, rows)
            assert expected.keys() == found.keys() == seen
            for key, row in expected.items():
                np.testing.assert_allclose(found[key], row, rtol=1e-4, atol=1e-7, err_msg=f"{rows} {key}")


def test_rows_without_a_key_are_zero(folder: Path) -> None:
    saved = checkpoint(of(folder, "third"))
    seen = trained_on(folder, STEPS)["items"]
    assert np.count_nonzero(np.abs(saved["items/rows"]).max(axis=1)) == saved["items/fill"].sum() == len(seen)


def test_a_wrong_row_is_found(folder: Path) -> None:
    """A key of the resumed run that has the row of another key, and one that has a slot of another key."""
    whole, resumed = checkpoint(of(folder, "whole")), checkpoint(of(folder, "third"))
    keys, (bucket, *_) = resumed["items/keys"], np.flatnonzero(resumed["items/fill"] > 1)
    keys[bucket, [0, 1]] = keys[bucket, [1, 0]]
    for rows in ("items/rows", "adam/items_rows_momentum"):
        expected, found = by_key(whole, "items", rows), by_key(resumed, "items", rows)
        wrong = [key for key, row in expected.items() if not np.allclose(found[key], row, rtol=1e-4, atol=1e-7)]
        assert set(wrong) == set(keys[bucket, :2].tolist())


@pytest.mark.parametrize("model", ["grow", "step", "graph"])
def test_one_rank_more_verifies(model: str, folder: Path) -> None:
    """A Keras model, a step with a tape, and a TensorFlow 1 graph that looks up keys of one table twice."""
    name = f"verified_{model}"
    done = run(folder, name, "action=verify", f"model={model}", *ranks(3), "train.steps=3").expect_success()
    assert done.summary["verified"]


@pytest.mark.parametrize("model", ["step", "graph"])
def test_steps_and_graphs_train_as_one_process(model: str, folder: Path) -> None:
    own = (f"model={model}", f"train.steps={STEPS}")
    whole = checkpoint(run(folder, f"{model}_whole", "comm=local", *own).expect_success())
    spread = checkpoint(run(folder, f"{model}_spread", *ranks(2), *own).expect_success())
    assert whole.keys() == spread.keys()
    seen = trained_on(folder, STEPS)
    keys = seen["items"] if model == "step" else seen["items"] | seen["users"]
    expected, found = by_key(whole, "items", "items/rows"), by_key(spread, "items", "items/rows")
    assert expected.keys() == found.keys() == keys
    for key, row in expected.items():
        np.testing.assert_allclose(found[key], row, rtol=1e-4, atol=1e-7, err_msg=str(key))


def test_predictions_and_the_served_model_answer_by_key(folder: Path) -> None:
    """The served model is moved, and answers without parallax_runner. A key of the validation data that was not
    trained on has its initial row."""
    resume = f"ckpt.resume={folder / 'third'}"
    predicted = run(folder, "predicted", "action=predict", *ranks(2), resume).expect_success()
    table = pyarrow.parquet.read_table(sorted((predicted.run_dir / "predictions").glob("*.parquet")))
    exported = run(folder, "exported", "action=export", resume).expect_success()
    moved = (exported.run_dir / "saved_model").rename(folder / "moved")
    x, expected = expected_predictions(folder)
    np.testing.assert_allclose(table["output"], expected, rtol=1e-4, atol=1e-6)
    np.savez(folder / "x.npz", **x)
    code = (
        "import sys, numpy as np, tensorflow as tf; sys.modules['parallax_runner'] = None\n"
        f"x = {{name: tf.constant(value) for name, value in np.load({str(folder / 'x.npz')!r}).items()}}\n"
        f"(answer,) = tf.saved_model.load({str(moved)!r}).signatures['serving_default'](**x).values()\n"
        "print('answer', answer.numpy().ravel().tolist())"
    )
    served = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert served.returncode == 0, served.stderr
    (line,) = [line for line in served.stdout.splitlines() if line.startswith("answer")]
    np.testing.assert_allclose(json.loads(line.removeprefix("answer ")), expected, rtol=1e-4, atol=1e-6)


def expected_predictions(folder: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Returns the validation data, and the model's outputs computed from the checkpoint with NumPy."""
    saved, seen = checkpoint(of(folder, "third")), trained_on(folder, STEPS)
    batch = dataset(folder).validation_batch(0, 120)
    x = {name: batch[name] for name in ("item", "user")}
    assert set(x["item"].ravel().tolist()) - seen["items"]
    items, users = (by_key(saved, table, f"{table}/rows") for table in ("items", "users"))
    of_items = np.array([[_row(items, key, 3, 4) for key in keys] for keys in x["item"].tolist()]).reshape(120, -1)
    of_users = np.array([_row(users, key, 4, 2) for key in x["user"].tolist()])
    outputs = np.concatenate([of_items, of_users], axis=1) @ saved["dense/kernel"] + saved["dense/bias"]
    return x, outputs[:, 0]


def _row(rows: dict[int, np.ndarray], key: int, seed: int, columns: int) -> np.ndarray:
    return rows[key] if key in rows else initial_row(key, seed=seed, columns=columns, scale=0.05)


def test_a_full_bucket_ends_the_run_with_its_key(folder: Path) -> None:
    failed = run(folder, "full", *ranks(2), "model.capacity=1024", "train.steps=2")
    assert failed.exit_status != 0
    assert "the vocabulary is full: a bucket has no place for a new key" in failed.stderr
    named = re.search(r"\(key, places of a bucket\):\W+(-?\d+)\W+1\W", failed.stderr)
    assert named is not None
    assert int(named.group(1)) in trained_on(folder, 2)["items"]


def test_keys_of_a_full_bucket_share_rows(folder: Path) -> None:
    arguments = (*ranks(2), "model.capacity=1024", "model.overflow=shared", "train.steps=4")
    saved = checkpoint(run(folder, "shared", *arguments).expect_success())
    seen = trained_on(folder, 4)["items"]
    assert saved["items/rows"].shape == (2048, 4)
    assert saved["items/fill"].sum() + np.count_nonzero(saved["items/overflow"]) <= len(seen)
    crowded = np.flatnonzero(saved["items/overflow"])
    assert len(crowded)
    trained = np.flatnonzero(np.abs(saved["items/rows"][1024:]).max(axis=1))
    np.testing.assert_array_equal(trained, crowded)


# For the other refusals see test_planning_growing.py and test_analysis_growing.py.
REFUSED = {
    "comm=mpi": "choose comm=sharded or comm=hybrid, or comm=local",
    "model.capacity=1000": "capacity=1000, expected at least 1024",
    "model=step_without_inserts": "call the model with training=True in the training step",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_refusals(setting: str, tmp_path: Path) -> None:
    failed = run(project(tmp_path), "refused", *ranks(2), setting)
    assert failed.exit_status != 0
    assert REFUSED[setting] in failed.stderr
    failed.expect_nothing_started()
