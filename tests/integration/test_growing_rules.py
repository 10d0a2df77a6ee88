"""Vocabularies whose keys come and go, by the command line: verified, served, taken into other tables, refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf

from tests.growing_keys import initial_row
from tests.integration.growing_models import BATCH, load_passing
from tests.integration.growing_runs import by_key, checkpoint, of, ranks, run, train_by_three_two_one, write_conf
from tests.shared import shared

MODELS = "_target_: tests.integration.growing_models."
SEED = 5
FILES = {
    "model/mine": (
        f"{MODELS}make_passing\ncapacity: 16384\nadmit: {{min_count: 3}}\nevict: {{unused_steps: 3, every_steps: 2}}\n"
        "knows_optimizer: true\nlabels: y\n"
    ),
    "model/graph": f"{MODELS}build_passing\n",
    "data/mine": f"{MODELS}load_passing\nseed: {SEED}\nbatch_size: {BATCH}\n",
}

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which three ranks have trained, then two, then one («third»)."""

    def train(folder: Path) -> Path:
        train_by_three_two_one(write_conf(folder, FILES), (4, 7, 12))
        return folder

    return shared(tmp_path_factory, "trained_with_rules", train)


@pytest.mark.parametrize("model", ["mine", "graph"])
def test_three_ranks_verify(model: str, folder: Path) -> None:
    done = run(folder, f"verified_{model}", "action=verify", f"model={model}", *ranks(3), "train.steps=5")
    assert done.expect_success().summary["verified"]


def test_predictions_count_nothing_and_use_initial_rows(folder: Path) -> None:
    """The served model gives the same answers as a prediction of two ranks, and as NumPy from the checkpoint."""
    saved, resume = checkpoint(of(folder, "third")), f"ckpt.resume={folder / 'third'}"
    predicted = run(folder, "predicted", "action=predict", *ranks(2), resume).expect_success()
    outputs = pyarrow.parquet.read_table(sorted((predicted.run_dir / "predictions").glob("*.parquet")))["output"]
    row_of = by_key(saved, "items", "items/rows")
    assert len(row_of) == saved["items/fill"].sum()
    batch = load_passing(SEED).validation_batch(0, 120)
    assert not set(batch["item"].ravel().tolist()) <= set(row_of)
    rows = [
        [row_of[key] if key in row_of else initial_row(key, seed=3, columns=4, scale=0.05) for key in keys]
        for keys in batch["item"].tolist()
    ]
    expected = np.array(rows).reshape(120, -1) @ saved["dense/kernel"] + saved["dense/bias"]
    np.testing.assert_allclose(outputs, expected[:, 0], rtol=1e-4, atol=1e-6)
    exported = run(folder, "exported", "action=export", resume).expect_success()
    served = tf.saved_model.load(str(exported.run_dir / "saved_model"))
    (answer,) = served.signatures["serving_default"](item=tf.constant(batch["item"])).values()
    np.testing.assert_allclose(answer.numpy()[:, 0], expected[:, 0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings", [("model.capacity=40000",), ("model.evict=null",), ("model.admit=null", "model.capacity=20000")]
)
def test_a_warm_start_takes_rows_by_key(settings: tuple[str, ...], folder: Path) -> None:
    """Into a larger table, and into tables with other rules. A step trains on few keys."""
    old = checkpoint(of(folder, "third"))
    name = "warm_" + "_".join(settings).replace("model.", "").replace("=", "_")
    warm = run(folder, name, *ranks(2), f"ckpt.warm_start={folder / 'third'}", "train.steps=1", *settings)
    new = checkpoint(warm.expect_success())
    old_rows, new_rows = (by_key(each, "items", "items/rows") for each in (old, new))
    same = [key for key, row in old_rows.items() if np.array_equal(row, new_rows[key])]
    assert old_rows.keys() <= new_rows.keys()
    assert len(same) > len(old_rows) / 3


REFUSED = {
    "model.knows_optimizer=false": "call set_optimizer(model.optimizer) on the layer after compile",
    "model.evict.unused_steps=0": 'expected whole numbers from 1 on, such as {"unused_steps"',
}


@pytest.mark.parametrize("setting", REFUSED)
def test_refusals(setting: str, tmp_path: Path) -> None:
    failed = run(write_conf(tmp_path, FILES), "refused", *ranks(2), setting)
    assert failed.exit_status != 0
    assert REFUSED[setting] in failed.stderr.replace("\n", " ")
    failed.expect_nothing_started()
