"""Vocabularies whose keys come and go, by the command line: resumed by other numbers of ranks in the middle of a count,
verified, served, taken into other tables, refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf

from tests.growing_keys import initial_row
from tests.integration.runs import Run, launch
from tests.shared import shared

CODE = '''
"""A model whose tables admit and evict keys, and its data."""

import keras
import numpy as np
import tensorflow as tf

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.layers import GrowingEmbedding, growing_lookup


def make_model(capacity, admit, evict, knows_optimizer):
    item = keras.Input([3], dtype="int64", name="item")
    table = GrowingEmbedding(4, capacity, admit=admit, evict=evict, seed=3, name="items")
    model = keras.Model({"item": item}, keras.layers.Dense(1)(keras.layers.Flatten()(table(item))))
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
    if knows_optimizer:
        table.set_optimizer(model.optimizer)
    return model


def make_data(seed):
    draw = np.random.default_rng(5)
    items = draw.zipf(1.5, size=(600, 3)) % 97 + np.arange(600)[:, np.newaxis] // 24 * 7
    arrays = {"item": items.astype("int64") * 7919, "y": draw.normal(size=(600, 1)).astype("float32")}
    train, validation = ({name: array[part] for name, array in arrays.items()} for part in (np.s_[:480], np.s_[480:]))
    return ArrayDataset(train=train, validation=validation, words_per_example=None, seed=seed)


def build_graph(features, optimizer):
    v1 = tf.compat.v1
    rules = {"admit": {"min_count": 2}, "evict": {"unused_steps": 2, "every_steps": 1}, "optimizer": optimizer}
    table = {"name": "items", "dim": 4, "capacity": 16384, "seed": 3, **rules}

    def loss_of(training):
        rows = growing_lookup(features["item"], training=training, **table)
        return v1.reduce_mean(v1.square(v1.reduce_sum(rows, [1, 2]) - features["y"][:, 0]))

    loss = loss_of(True)
    train_op = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
    return {"loss": loss, "train_op": train_op, "validation_loss": loss_of(False)}
'''
MODEL = (
    "_target_: rules.make_model\ncapacity: 16384\nadmit: {min_count: 3}\nevict: {unused_steps: 3, every_steps: 2}\n"
    "knows_optimizer: true\nlabels: y\n"
)
FILES = {
    "model/rules.yaml": MODEL,
    "model/graph.yaml": "_target_: rules.build_graph\n",
    "data/rules.yaml": "_target_: rules.make_data\nseed: 5\nbatch_size: 24\n",
}
STEPS, BATCH = 12, 24
EVERYTHING = ("keys", "index", "fill", "overflow", "free", "counts", "waiting", "last_used", "steps", "evicted")

pytestmark = pytest.mark.timeout(1200)


def project(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.py").write_text(CODE)
    for name, text in FILES.items():
        path = folder / "myconf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run(folder: Path, name: str, *arguments: str) -> Run:
    fixed = (f"--config-dir={folder / 'myconf'}", "model=rules", "data=rules", "tracking=off", "comm=sharded")
    return launch(*fixed, *arguments, cwd=folder, name=name, python_path=folder)


def ranks(number: int) -> tuple[str, ...]:
    """Returns the settings for this number of ranks, with the same examples in each step."""
    return f"cluster.workers={number}", f"data.batch_size={BATCH // number}"


def checkpoint(done: Run) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(done.summary["ckpt_path"])
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def of(folder: Path, name: str) -> Run:
    return Run(folder / name, 0, "", "", 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which one process has trained («whole»), and three ranks, then two, then one («third»)."""

    def train(folder: Path) -> Path:
        project(folder)
        run(folder, "whole", "comm=local", f"train.steps={STEPS}").expect_success()
        first = run(folder, "first", *ranks(3), "train.steps=4").expect_success()
        resumed = f"ckpt.resume={first.run_dir}"
        second = run(folder, "second", *ranks(2), "train.steps=7", resumed).expect_success()
        resumed = f"ckpt.resume={second.run_dir}"
        run(folder, "third", *ranks(1), f"train.steps={STEPS}", resumed).expect_success()
        return folder

    return shared(tmp_path_factory, "trained_with_rules", train)


def test_three_then_two_then_one_rank_equal_one_process(folder: Path) -> None:
    whole, resumed = checkpoint(of(folder, "whole")), checkpoint(of(folder, "third"))
    assert whole.keys() == resumed.keys() >= {f"items/{name}" for name in EVERYTHING}
    for name, value in whole.items():
        if name.startswith("items/") and name != "items/rows":
            np.testing.assert_array_equal(resumed[name], value, err_msg=name)
        else:
            np.testing.assert_allclose(resumed[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    middle = checkpoint(of(folder, "second"))
    assert middle["items/waiting"].sum() and middle["items/evicted"].sum()
    assert resumed["items/evicted"].sum() > middle["items/evicted"].sum()


@pytest.mark.parametrize("model", ["rules", "graph"])
def test_three_ranks_verify(model: str, folder: Path) -> None:
    done = run(folder, f"verified_{model}", "action=verify", f"model={model}", *ranks(3), "train.steps=5")
    assert done.expect_success().summary["verified"]


def test_predictions_count_nothing_and_use_initial_rows(folder: Path) -> None:
    """The served model gives the same answers as a prediction of two ranks, and as NumPy from the checkpoint."""
    saved, resume = checkpoint(of(folder, "third")), f"ckpt.resume={folder / 'third'}"
    predicted = run(folder, "predicted", "action=predict", *ranks(2), resume).expect_success()
    outputs = pyarrow.parquet.read_table(sorted((predicted.run_dir / "predictions").glob("*.parquet")))["output"]
    places = saved["items/rows"].shape[0] // 1024
    taken = zip(*np.nonzero(saved["items/last_used"][:, :places]), strict=True)
    row_of = {saved["items/keys"][b, p]: saved["items/rows"][b * places + p] for b, p in taken}
    assert len(row_of) == saved["items/fill"].sum()
    namespace: dict[str, object] = {}
    exec(CODE, namespace)
    batch = namespace["make_data"](5).validation_batch(0, 120)
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
    old_rows, new_rows = _rows(old), _rows(new)
    same = [key for key, row in old_rows.items() if np.array_equal(row, new_rows[key])]
    assert old_rows.keys() <= new_rows.keys()
    assert len(same) > len(old_rows) / 3


def _rows(saved: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
    places = saved["items/rows"].shape[0] // 1024
    if "items/last_used" in saved:
        is_taken = saved["items/last_used"][:, :places] > 0
    else:
        is_taken = np.arange(places) < saved["items/fill"][:, np.newaxis]
    return {int(saved["items/keys"][b, p]): saved["items/rows"][b * places + p] for b, p in np.argwhere(is_taken)}


REFUSED = {
    "model.knows_optimizer=false": "call set_optimizer(model.optimizer) on the layer after compile",
    "model.evict.unused_steps=0": 'expected whole numbers from 1 on, such as {"unused_steps"',
}


@pytest.mark.parametrize("setting", REFUSED)
def test_refusals(setting: str, tmp_path: Path) -> None:
    failed = run(project(tmp_path), "refused", *ranks(2), setting)
    assert failed.exit_status != 0
    assert REFUSED[setting] in failed.stderr.replace("\n", " ")
    failed.expect_nothing_started()
