"""Vocabularies that grow, by the command line: trained by any number of ranks, resumed, verified, served, refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from tests.growing_keys import initial_row
from tests.integration.growing_models import BATCH, load
from tests.integration.growing_runs import by_key, checkpoint, of, ranks, run, train_by_three_two_one, write_conf
from tests.shared import shared

MODELS = "_target_: tests.integration.growing_models."
SEED = 5
FILES = {
    "model/mine": f"{MODELS}make_growing\ncapacity: 16384\noverflow: error\nlabels: y\n",
    "model/step": f"{MODELS}make_step\ntraining: true\n",
    "model/step_without_inserts": f"{MODELS}make_step\ntraining: false\n",
    "model/graph": f"{MODELS}build_growing\n",
    "data/mine": f"{MODELS}load\nseed: {SEED}\nbatch_size: {BATCH}\n",
}
STEPS = 12

pytestmark = pytest.mark.timeout(1200)


def trained_on(steps: int) -> dict[str, set[int]]:
    """Returns the keys of the first steps, by table."""
    batch = load(SEED).train_batch(0, BATCH * steps)
    return {"items": set(batch["item"].ravel().tolist()), "users": set(batch["user"].tolist())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which one process has trained («whole»), and three ranks, then two, then one («third»)."""

    def train(folder: Path) -> Path:
        write_conf(folder, FILES)
        run(folder, "whole", "comm=local", f"train.steps={STEPS}").expect_success()
        train_by_three_two_one(folder, (4, 8, STEPS))
        return folder

    return shared(tmp_path_factory, "trained_with_growth", train)


def test_three_then_two_then_one_rank_equal_one_process_by_key(folder: Path) -> None:
    whole, resumed = checkpoint(of(folder, "whole")), checkpoint(of(folder, "third"))
    assert whole.keys() == resumed.keys()
    for table, seen in trained_on(STEPS).items():
        for rows in (f"{table}/rows", f"adam/{table}_rows_momentum", f"adam/{table}_rows_velocity"):
            expected, found = by_key(whole, table, rows), by_key(resumed, table, rows)
            assert expected.keys() == found.keys() == seen
            for key, row in expected.items():
                np.testing.assert_allclose(found[key], row, rtol=1e-4, atol=1e-7, err_msg=f"{rows} {key}")


def test_rows_without_a_key_are_zero(folder: Path) -> None:
    saved = checkpoint(of(folder, "third"))
    seen = trained_on(STEPS)["items"]
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


@pytest.mark.parametrize("model", ["mine", "step", "graph"])
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
    seen = trained_on(STEPS)
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
    saved, seen = checkpoint(of(folder, "third")), trained_on(STEPS)
    batch = load(SEED).validation_batch(0, 120)
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
    assert int(named.group(1)) in trained_on(2)["items"]


def test_keys_of_a_full_bucket_share_rows(folder: Path) -> None:
    arguments = (*ranks(2), "model.capacity=1024", "model.overflow=shared", "train.steps=4")
    saved = checkpoint(run(folder, "shared", *arguments).expect_success())
    seen = trained_on(4)["items"]
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
    failed = run(write_conf(tmp_path, FILES), "refused", *ranks(2), setting)
    assert failed.exit_status != 0
    assert REFUSED[setting] in failed.stderr
    failed.expect_nothing_started()
