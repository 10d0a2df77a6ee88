"""`tf.train.init_from_checkpoint` in model functions and in scripts: initial values that are read from a checkpoint, in
real processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.integration import scripted
from tests.integration.runs import Run, launch

MODULE = '''
"""A table whose initial rows come from another program, and a weight."""

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.data.arrays import ArrayDataset


def load(*, seed):
    draw = np.random.default_rng(seed)
    id = draw.integers(0, 30, 256).astype(np.int32)  # the last rows of the table are never looked up
    train = {"id": id, "label": draw.normal(size=256)}
    nothing = {name: array[:0] for name, array in train.items()}
    return ArrayDataset(train=train, validation=nothing, words_per_example=None, seed=seed)


def build(features, optimizer):
    table = tf.get_variable("table", [41, 4], tf.float64, initializer=tf.zeros_initializer())
    weight = tf.get_variable("weight", [4], tf.float64, initializer=tf.ones_initializer())
    tf.train.init_from_checkpoint("theirs", {"pretrained/": "/"})  # a path relative to the working directory
    predicted = tf.reduce_sum(tf.nn.embedding_lookup(table, features["id"]) * weight, axis=1)
    loss = tf.reduce_mean(tf.square(predicted - features["label"]))
    return {"loss": loss, "train_op": optimizer.minimize(loss, tf.train.get_or_create_global_step())}
'''
BATCH, STEPS = 8, 5
VALUES = {
    "pretrained/table": np.random.default_rng(3).normal(size=(41, 4)),
    "pretrained/weight": np.array([0.5, -1.0, 2.0, 0.25]),
}
UNTOUCHED = slice(30, None)


def save(prefix: Path, values: dict[str, np.ndarray]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(name, initializer=value) for name, value in values.items()]
        session.run(tf.global_variables_initializer())
        tf.train.Saver(variables).save(session, str(prefix), write_meta_graph=False)


def train(folder: Path, *arguments: str, name: str = "out", batch_size: int = BATCH) -> dict[str, np.ndarray]:
    fixed = ("--config-dir", "myconf", "model=tuned", "data=tuned", "optimizer=adagrad", f"train.steps={STEPS}")
    sizes = (f"data.batch_size={batch_size}", "tracking=off")
    done: Run = launch(*fixed, *sizes, *arguments, cwd=folder, name=name).expect_success()
    reader = tf.train.load_checkpoint(str(done.ckpt_dir / f"model.ckpt-{STEPS}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tuned")
    (made / "tuned.py").write_text(MODULE, encoding="utf-8")
    for group, target in (("model", "build"), ("data", "load")):
        (made / "myconf" / group).mkdir(parents=True)
        more = "seed: 3\nbatch_size: 8\n" if group == "data" else ""
        (made / "myconf" / group / "tuned.yaml").write_text(f"_target_: tuned.{target}\n{more}", encoding="utf-8")
    save(made / "theirs", VALUES)
    return made


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, np.ndarray]:
    """The values of one device with the whole batch."""
    found = train(folder, "comm=local", name="alone", batch_size=2 * BATCH)
    np.testing.assert_array_equal(found["table"][UNTOUCHED], VALUES["pretrained/table"][UNTOUCHED])
    assert not np.allclose(found["table"][:30], VALUES["pretrained/table"][:30])
    return found


MODES = ["comm=mpi", "comm=sharded", "comm=hybrid partition=fixed partition.num=3", "comm=ps cluster.servers=2"]


@pytest.mark.parametrize("mode", MODES)
def test_two_workers_train_as_one_device(mode: str, folder: Path, alone: dict[str, np.ndarray], tmp_path: Path) -> None:
    found = train(folder, *mode.split(), name=tmp_path.name)
    assert set(found) == set(alone)
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(found["table"][UNTOUCHED], VALUES["pretrained/table"][UNTOUCHED])


@pytest.mark.parametrize(("option", "partitioner"), [("HYBRID", 2), ("MPI", 0)])
def test_a_script_trains_as_one_device(option: str, partitioner: int, tmp_path: Path) -> None:
    table = np.random.default_rng(4).normal(size=(6, 2))
    save(tmp_path / "theirs", {"theirs/table": table})
    config = {"run_option": option, "average_sparse": True}
    done = scripted.run(tmp_path, pretrained="theirs", partitioner=partitioner, config=config)
    scripted.expect(done, average_sparse=True, table=table)
