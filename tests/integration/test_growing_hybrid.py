"""Vocabularies that grow under comm=hybrid, by the command line: ranks own their rows, and servers own those of a table
that does not grow."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf

from tests.integration.runs import Run, launch
from tests.shared import shared

CODE = '''
"""A model with a table that grows, one whose keys come and go, and one that does not grow, and its data."""

import keras
import numpy as np
import tensorflow as tf

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.layers import GrowingEmbedding, growing_lookup

RULES = {"admit": {"min_count": 2}, "evict": {"unused_steps": 3, "every_steps": 2}}


def make_model(has_static):
    item, user = keras.Input([3], dtype="int64", name="item"), keras.Input([], dtype="int64", name="user")
    day = keras.Input([], dtype="int64", name="day")
    items = GrowingEmbedding(4, 16384, seed=3, name="items")
    users = GrowingEmbedding(2, 8192, seed=4, name="users", **RULES)
    parts = [keras.layers.Flatten()(items(item)), users(user)]
    if has_static:
        parts.append(keras.layers.Embedding(31, 3, name="days")(day))
    output = keras.layers.Dense(1)(keras.layers.Concatenate()(parts))
    model = keras.Model({"item": item, "user": user, "day": day}, output)
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0), "mse")
    model.optimizer.build(model.trainable_variables)
    users.set_optimizer(model.optimizer)
    return model


def make_data(seed):
    draw = np.random.default_rng(5)
    items = draw.zipf(1.3, size=(600, 3)) % 997 * 7919 - 40000
    users = np.arange(600, dtype="int64") // 24 * 5 + draw.integers(0, 40, 600)
    labels = draw.normal(size=(600, 1)).astype("float32")
    arrays = {"item": items.astype("int64"), "user": users * 1000003, "day": draw.integers(0, 31, 600), "y": labels}
    train, validation = ({name: array[part] for name, array in arrays.items()} for part in (np.s_[:480], np.s_[480:]))
    return ArrayDataset(train=train, validation=validation, words_per_example=None, seed=seed)


def build_graph(features, optimizer):
    """Two lookups of a table that grows, one of a table whose keys come and go, and a table that does not grow; clipped
    by the norm of all gradients."""
    v1 = tf.compat.v1
    days = v1.get_variable("days", [31, 4], initializer=v1.random_uniform_initializer(-0.1, 0.1, seed=2))
    bias = v1.get_variable("bias", [4], initializer=v1.ones_initializer())

    def loss_of(training):
        items = {"name": "items", "dim": 4, "capacity": 16384, "seed": 3, "training": training}
        users = {"name": "users", "dim": 4, "capacity": 8192, "seed": 4, "training": training, **RULES}
        rows = v1.reduce_sum(growing_lookup(features["item"], **items), 1)
        rows += growing_lookup(features["user"], **items)
        rows += growing_lookup(features["user"], **users, optimizer=optimizer)
        rows += v1.nn.embedding_lookup(days, features["day"])
        return v1.reduce_mean(v1.square(v1.reduce_sum(rows * bias, 1) - features["y"][:, 0]))

    loss = loss_of(True)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    clipped, _ = v1.clip_by_global_norm(gradients, 0.5)
    step = v1.train.get_or_create_global_step()
    train_op = optimizer.apply_gradients(zip(clipped, variables), global_step=step)
    return {"loss": loss, "train_op": train_op, "validation_loss": loss_of(False)}
'''
FILES = {
    "model/keras.yaml": "_target_: grow.make_model\nhas_static: true\nlabels: y\n",
    "model/graph.yaml": "_target_: grow.build_graph\n",
    "data/grow.yaml": "_target_: grow.make_data\nseed: 5\nbatch_size: 24\n",
}
STEPS, BATCH = 12, 24
SERVERS = ("cluster.servers=2", "partition=fixed", "partition.num=2")
MODELS = {"keras": (), "graph": ("optimizer=momentum",)}

pytestmark = pytest.mark.timeout(1200)


def project(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "grow.py").write_text(CODE)
    for name, text in FILES.items():
        path = folder / "myconf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run(folder: Path, name: str, *arguments: str) -> Run:
    fixed = (f"--config-dir={folder / 'myconf'}", "model=keras", "data=grow", "tracking=off")
    return launch(*fixed, *arguments, cwd=folder, name=name, python_path=folder)


def ranks(number: int, comm: str = "hybrid") -> tuple[str, ...]:
    """Returns the settings for this number of ranks, with the same examples in each step."""
    mode = (f"comm={comm}", f"cluster.workers={number}", f"data.batch_size={BATCH // number}")
    return mode if comm == "sharded" else (*mode, *SERVERS)


def of(folder: Path, name: str) -> Run:
    return Run(folder / name, 0, "", "", 0.0)


def checkpoint(done: Run) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(done.summary["ckpt_path"])
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Row numbers do not depend on the number of ranks, so a map, its rows and their slots are the same."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


# Resumed by other numbers of ranks, in another mode and back.
CHAIN = {"first": (3, "hybrid", 4), "second": (2, "sharded", 7), "third": (2, "hybrid", 10), "last": (1, "hybrid", 12)}


def train(model: str, folder: Path) -> Path:
    """Trains in one process («whole»), and in the runs of `CHAIN`."""
    project(folder)
    own = (f"model={model}", *MODELS[model])
    run(folder, "whole", *own, "comm=local", f"train.steps={STEPS}").expect_success()
    resumed: tuple[str, ...] = ()
    for name, (number, comm, steps) in CHAIN.items():
        done = run(folder, name, *own, *ranks(number, comm), f"train.steps={steps}", *resumed).expect_success()
        resumed = (f"ckpt.resume={done.run_dir}",)
    return folder


def folder_of(model: str, folders: pytest.TempPathFactory) -> Path:
    return shared(folders, f"{model}_with_two_owners", functools.partial(train, model))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of("keras", tmp_path_factory)


@pytest.mark.parametrize("model", MODELS)
def test_resumed_runs_of_both_modes_equal_one_process(model: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = folder_of(model, tmp_path_factory)
    whole, last = checkpoint(of(folder, "whole")), checkpoint(of(folder, "last"))
    assert_same(last, whole)
    assert whole["users/evicted"].sum() and whole["users/waiting"].sum() and whole["items/fill"].sum() > 200
    plan = {one["name"]: one for one in of(folder, "first").plan["variables"]}
    (days,) = [one for name, one in plan.items() if name.startswith("days")]
    assert (days["route"], len(days["shards"])) == ("ps", 2)
    assert plan["items/rows"]["route"] == plan["users/rows"]["route"] == "alltoall"


def test_a_key_with_the_row_of_another_key_is_found(folder: Path) -> None:
    whole, last = checkpoint(of(folder, "whole")), checkpoint(of(folder, "last"))
    bucket = np.flatnonzero(last["items/fill"] > 1)[0]
    last["items/keys"][bucket, [0, 1]] = last["items/keys"][bucket, [1, 0]]
    with pytest.raises(AssertionError, match="items/keys"):
        assert_same(last, whole)


@pytest.mark.parametrize(("model", "number"), [("keras", 3), ("keras", 2), ("graph", 3), ("graph", 2)])
def test_verifies(model: str, number: int, folder: Path) -> None:
    own = ("action=verify", f"model={model}", *MODELS[model], "train.steps=5")
    done = run(folder, f"verified_{model}_{number}", *own, *ranks(number)).expect_success()
    assert done.summary["verified"]


def test_predictions_and_the_served_model_are_those_of_one_process(folder: Path) -> None:
    """The served model answers without parallax_runner."""
    resume, found = f"ckpt.resume={folder / 'third'}", {}
    for name, settings in {"by_ranks": ranks(2), "by_one": ("comm=local",)}.items():
        predicted = run(folder, name, "action=predict", *settings, resume).expect_success()
        table = pyarrow.parquet.read_table(sorted((predicted.run_dir / "predictions").glob("*.parquet")))
        found[name] = np.array(table["output"])
    np.testing.assert_allclose(found["by_ranks"], found["by_one"], rtol=1e-5, atol=1e-7)
    exported = run(folder, "exported", "action=export", *ranks(2), resume).expect_success()
    namespace: dict[str, Any] = {}
    exec(CODE, namespace)
    batch = namespace["make_data"](5).validation_batch(0, 120)
    np.savez(folder / "x.npz", **{name: batch[name] for name in ("item", "user", "day")})
    code = (
        "import sys, numpy as np, tensorflow as tf; sys.modules['parallax_runner'] = None\n"
        f"x = {{name: tf.constant(value) for name, value in np.load({str(folder / 'x.npz')!r}).items()}}\n"
        f"served = tf.saved_model.load({str(exported.run_dir / 'saved_model')!r})\n"
        "(answer,) = served.signatures['serving_default'](**x).values()\n"
        "print('answer', answer.numpy().ravel().tolist())"
    )
    served = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert served.returncode == 0, served.stderr
    (line,) = [line for line in served.stdout.splitlines() if line.startswith("answer")]
    np.testing.assert_allclose(json.loads(line.removeprefix("answer ")), found["by_one"], rtol=1e-4, atol=1e-6)


def test_a_warm_start_takes_rows_by_key(folder: Path) -> None:
    settings = (f"ckpt.warm_start={folder / 'third'}", "train.steps=2")
    expected = checkpoint(run(folder, "warm_alone", "comm=local", *settings).expect_success())
    assert_same(checkpoint(run(folder, "warm_hybrid", *ranks(3), *settings).expect_success()), expected)


def test_steps_that_may_be_skipped_train_alike_through_horovod(folder: Path) -> None:
    settings = ("train.steps=4", "train.on_nan=skip")
    expected = checkpoint(run(folder, "skip_alone", "comm=local", *settings).expect_success())
    found = run(folder, "skip_hybrid", *ranks(2), *settings, "comm.backend=horovod").expect_success()
    assert_same(checkpoint(found), expected)


def test_a_search_recuts_only_what_servers_own(folder: Path) -> None:
    search = ("partition=search", "partition.num=1", "partition.max=3", "partition.steps_per_trial=2")
    own = ("comm=hybrid", "cluster.workers=2", f"data.batch_size={BATCH // 2}", "cluster.servers=2")
    steps = ("train.steps=40", "ckpt.save_steps=5", "data.seed=5")
    searched = run(folder, "searched", *own, *search, *steps).expect_success()
    assert "partitions" in searched.stderr
    assert_same(checkpoint(searched), checkpoint(run(folder, "search_alone", "comm=local", *steps).expect_success()))


def test_without_a_static_table_no_server_starts(folder: Path) -> None:
    own = ("model.has_static=false", "train.steps=4")
    done = run(folder, "growing_only", *ranks(2), *own).expect_success()
    assert "vocabularies grow on the ranks: no server is started" in done.stderr
    assert not any(name.startswith("server") for name in done.log_names())
    assert_same(checkpoint(done), checkpoint(run(folder, "only_alone", "comm=local", *own).expect_success()))


def test_auto_trains_them(folder: Path) -> None:
    own = ("comm=auto", "cluster.workers=2", f"data.batch_size={BATCH // 2}", "cluster.servers=2", "train.steps=4")
    done = run(folder, "auto", *own).expect_success()
    plan = {one["name"]: one["route"] for one in done.plan["variables"]}
    assert plan["items/rows"] == plan["users/rows"] == "alltoall"
    expected = run(folder, "auto_alone", "comm=local", "train.steps=4").expect_success()
    assert_same(checkpoint(done), checkpoint(expected))


REFUSED = {
    "comm=mpi": "choose comm=sharded or comm=hybrid, or comm=local",
    "comm=ps": "choose comm=sharded or comm=hybrid, or comm=local",
    "comm.sync=false": "asynchronous training needs the servers of comm=ps",
    "comm.lookahead=on": "choose comm.lookahead=auto",
    "ckpt.delta_steps=2": "on servers, which do not notice what has changed",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_refusals(setting: str, folder: Path) -> None:
    failed = run(folder, f"refused_{setting.replace('=', '_')}", *ranks(2), setting)
    assert failed.exit_status != 0
    assert REFUSED[setting] in failed.stderr.replace("\n", " ")
    failed.expect_nothing_started()
