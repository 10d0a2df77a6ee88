"""Deltas by the command line: a served model with a delta is that of a run that has saved a checkpoint at the same
step."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parallax_runner.checkpoints.delta_files import read_delta, values_of
from tests.integration.growing_runs import Values, by_key, values_in
from tests.integration.runs import Run, launch
from tests.shared import shared

CODE = '''
"""A model with a vocabulary that grows, a table of a fixed size and dense layers, and its data."""

import keras
import numpy as np

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.layers import GrowingEmbedding


def make_model(optimizer, grows):
    item, user = keras.Input([3], dtype="int64", name="item"), keras.Input([], dtype="int32", name="user")
    if grows:
        rows = GrowingEmbedding(4, 16384, seed=3, name="items")(item)
    else:
        initial = keras.initializers.RandomNormal(seed=4)
        rows = keras.layers.Embedding(1000, 4, name="items", embeddings_initializer=initial)(item % 1000)
    items = keras.layers.Flatten()(rows)
    users = keras.layers.Embedding(500, 2, name="users", embeddings_initializer=keras.initializers.RandomNormal(seed=1))
    hidden = keras.layers.Dense(5, kernel_initializer=keras.initializers.GlorotUniform(seed=2))
    both = keras.layers.LayerNormalization()(hidden(keras.layers.Concatenate()([items, users(user)])))
    out = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=3))(both)
    model = keras.Model({"item": item, "user": user}, out)
    model.compile(optimizer, "mse")
    return model


def make_data(seed):
    draw = np.random.default_rng(5)
    items = draw.zipf(1.3, size=(700, 3)) % 997 * 7919 - 40000
    users, labels = draw.integers(0, 500, 700), draw.normal(size=(700, 1)).astype("float32")
    arrays = {"item": items.astype("int64"), "user": users.astype("int32"), "y": labels}
    train, validation = ({name: array[part] for name, array in arrays.items()} for part in (np.s_[:640], np.s_[640:]))
    return ArrayDataset(train=train, validation=validation, words_per_example=None, seed=seed)
'''
MODEL = "_target_: deltas.make_model\noptimizer: adagrad\ngrows: true\nlabels: y\n"
DATA = "_target_: deltas.make_data\nseed: 5\nbatch_size: 12\n"
TWO = ("comm=sharded", "cluster.workers=2")
EVERY = ("ckpt.save_steps=10", "ckpt.delta_steps=3", "ckpt.keep=20")
# A run that is continued three times. Its checkpoints are those of the steps 10, 14, 17, 20 and 22, the last of each
# run and every tenth.
ENDS = (14, 17, 20, 22)
BASES = {12: 10, 15: 14, 18: 17, 21: 20}

# Answers by the SavedModels in the folders that the arguments name, without parallax_runner.
SERVE = """
import sys
import numpy as np
import tensorflow as tf

sys.modules["parallax_runner"] = None
examples, *folders = sys.argv[1:]
with np.load(examples) as file:
    batch = {name: tf.constant(value) for name, value in file.items()}
for folder in folders:
    (answer,) = tf.saved_model.load(folder).signatures["serving_default"](**batch).values()
    print("answer", answer.numpy().ravel().tobytes().hex())
"""

pytestmark = pytest.mark.timeout(1800)


def project(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "deltas.py").write_text(CODE)
    for group, text in (("model", MODEL), ("data", DATA)):
        (folder / "myconf" / group).mkdir(parents=True)
        (folder / "myconf" / group / "small.yaml").write_text(text)
    return folder


def run(folder: Path, name: str, *arguments: str) -> Run:
    fixed = (f"--config-dir={folder / 'myconf'}", "model=small", "data=small", "tracking=off")
    return launch(*fixed, *arguments, cwd=folder, name=name, python_path=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which two workers have trained and saved deltas («deltas»), have saved checkpoints every three steps
    («full»), and one process has saved deltas («alone»). Each state is exported: those with a delta to `delta_STEP` and
    `alone_STEP`, and those without to `full_STEP`."""

    def train(folder: Path) -> Path:
        project(folder)
        run(folder, "full", *TWO, "train.steps=22", "ckpt.save_steps=3", "ckpt.keep=20").expect_success()
        for step in ENDS:
            run(folder, "deltas", *TWO, *EVERY, f"train.steps={step}").expect_success()
        one = ("comm=local", "data.batch_size=24")
        run(folder, "alone", *one, *EVERY, "train.steps=14").expect_success()
        for step, base in BASES.items():
            export(folder, f"full_{step}", folder / "full/ckpt" / f"model.ckpt-{step}").expect_success()
            export(folder, f"delta_{step}", delta(folder, base)).expect_success()
        return folder

    return shared(tmp_path_factory, "trained_with_deltas", train)


def export(folder: Path, name: str, resume: Path, *arguments: str) -> Run:
    return run(folder, name, "action=export", *TWO, f"ckpt.resume={resume}", *arguments)


def delta(folder: Path, base: int) -> Path:
    return folder / "deltas/ckpt" / f"model.ckpt-{base}.delta"


def bytes_by_key(saved: Values) -> dict[int, bytes]:
    """Returns the rows of the vocabulary that grows, by key."""
    return {key: row.tobytes() for key, row in by_key(saved, "items", "items/rows").items()}


def test_each_delta_has_the_rows_of_the_checkpoint_of_its_step(folder: Path) -> None:
    """By key and bit for bit; so are the rows of the other table, and the dense variables."""
    for step in BASES:
        found, wanted = (
            values_in(folder / f"{kind}_{step}" / "saved_model/variables/variables") for kind in ("delta", "full")
        )
        assert found.keys() == wanted.keys() and "items/rows" in found
        assert bytes_by_key(found) == bytes_by_key(wanted)
        for name, value in wanted.items():
            if not name.startswith(("items/", "_")):
                np.testing.assert_array_equal(found[name], value, err_msg=f"{name} of step {step}")


def test_the_served_models_answer_alike_and_differ_by_step(folder: Path) -> None:
    """In plain TensorFlow: keys that have been seen, and keys that have not."""
    draw = np.random.default_rng(1)
    items = draw.zipf(1.3, size=(64, 3)) % 1200 * 7919 - 40000
    np.savez(folder / "x.npz", item=items.astype("int64"), user=draw.integers(0, 500, 64).astype("int32"))
    folders = [str(folder / f"{kind}_{step}" / "saved_model") for step in BASES for kind in ("delta", "full")]
    code = [sys.executable, "-c", SERVE, str(folder / "x.npz"), *folders]
    served = subprocess.run(code, capture_output=True, text=True, check=False)
    assert served.returncode == 0, served.stderr
    answers = re.findall(r"^answer (\w+)$", served.stdout, re.M)
    with_deltas, without = answers[::2], answers[1::2]
    assert with_deltas == without
    assert len(set(without)) == len(BASES)


def test_an_export_tells_which_step_it_serves(folder: Path) -> None:
    for step, base in BASES.items():
        exported = Run(folder / f"delta_{step}", 0, "", "", 0.0)
        assert exported.summary["steps"] == step
        assert exported.summary["ckpt_path"] == str(delta(folder, base))
        description = json.loads((exported.run_dir / "saved_model/assets.extra/serving.json").read_text())
        assert description["checkpoint"] == f"model.ckpt-{step}"


def test_a_delta_has_few_rows(folder: Path) -> None:
    base = folder / "deltas/ckpt/model.ckpt-20"
    found = read_delta(base)
    assert found is not None
    changed = values_in(values_of(base, found))
    assert len(changed["users/embeddings:places"]) == len(changed["users/embeddings"]) <= 24
    assert not [name for name in changed if "accumulator" in name]
    log = (folder / "deltas/logs/worker_0.log").read_text()
    rows = sum(found.rows.values())
    assert f"delta of step 21: {rows:,} rows, {found.size_bytes:,} bytes" in log


def test_deltas_of_two_workers_equal_those_of_one_process_by_key(folder: Path) -> None:
    """To rounding, because the order of sums differs."""
    bases = [folder / name / "ckpt/model.ckpt-10" for name in ("deltas", "alone")]
    deltas = [read_delta(base) for base in bases]
    two, one = (
        values_in(values_of(base, found)) for base, found in zip(bases, deltas, strict=True) if found is not None
    )
    assert two.keys() == one.keys()
    for name in ("items/rows", "items/keys", "items/fill", "users/embeddings"):
        found, wanted = (
            {place: value for place, value in zip(each[f"{name}:places"].tolist(), each[name], strict=True)}
            for each in (two, one)
        )
        assert found.keys() == wanted.keys(), name
        for place, value in wanted.items():
            np.testing.assert_allclose(found[place], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_whole_tables_on_each_worker_have_deltas(folder: Path) -> None:
    mpi = ("comm=mpi", "cluster.workers=2", "model.grows=false", "train.steps=14")
    run(folder, "mpi", *mpi, *EVERY).expect_success()
    run(folder, "mpi_full", *mpi, "ckpt.save_steps=3", "ckpt.keep=20").expect_success()
    saved = []
    for name, resume in (("mpi", "model.ckpt-10.delta"), ("mpi_full", "model.ckpt-12")):
        own = ("model.grows=false", f"ckpt.resume={folder / name / 'ckpt' / resume}")
        exported = run(folder, f"exported_{name}", "action=export", *own).expect_success()
        assert exported.summary["steps"] == 12
        saved.append(values_in(exported.run_dir / "saved_model/variables/variables"))
    found, wanted = saved
    assert found.keys() == wanted.keys()
    for name in wanted.keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def test_the_newest_values_are_evaluated_and_predicted(folder: Path, tmp_path: Path) -> None:
    """A folder whose newest checkpoint has a delta: both use it, and say so."""
    ckpt = tmp_path / "ckpt"
    shutil.copytree(folder / "deltas/ckpt", ckpt, ignore=shutil.ignore_patterns("model.ckpt-22.*"))
    evaluated = run(folder, "evaluated", "action=evaluate", *TWO, f"ckpt.resume={ckpt}").expect_success()
    assert f"uses {ckpt}/model.ckpt-20 with its delta, which is of step 21" in evaluated.stderr
    full = folder / "full/ckpt/model.ckpt-21"
    wanted = run(folder, "evaluated_full", "action=evaluate", *TWO, f"ckpt.resume={full}").expect_success()
    assert evaluated.summary["steps"] == wanted.summary["steps"] == 21
    assert evaluated.summary["validation_loss"] == wanted.summary["validation_loss"]
    predicted = run(folder, "predicted", "action=predict", *TWO, f"ckpt.resume={ckpt}").expect_success()
    assert predicted.summary["steps"] == 21


def test_a_damaged_delta_is_told_and_its_checkpoint_remains(folder: Path, tmp_path: Path) -> None:
    ckpt = tmp_path / "ckpt"
    shutil.copytree(folder / "deltas/ckpt", ckpt, ignore=shutil.ignore_patterns("model.ckpt-22.*"))
    base = ckpt / "model.ckpt-20"
    found = read_delta(base)
    assert found is not None
    (ckpt / f"{values_of(base, found).name}.index").unlink()
    exported = export(folder, "exported_without", ckpt).expect_success()
    assert exported.summary["steps"] == 20
    assert f"delta {base}.delta.json is damaged: {values_of(base, found).name}.index is missing" in exported.stderr
    assert f"using {base} without it, which is of step 20" in exported.stderr
    refused = export(folder, "refused", base.with_name("model.ckpt-20.delta"))
    assert refused.exit_status != 0
    assert f"Its checkpoint remains, which is of step 20: ckpt.resume={base}" in refused.stderr


# For the other refusals see test_planning_deltas.py.
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "servers": (("comm=hybrid", "model.grows=false"), "on servers, which do not notice what has changed"),
    "no checkpoint before": (("ckpt.save_steps=3",), "expected less than ckpt.save_steps=3"),
    "training": (("ckpt.resume=BASE.delta",), "a delta has no slots of the optimizer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, folder: Path) -> None:
    arguments, told = REFUSED[name]
    given = [one.replace("BASE", str(folder / "deltas/ckpt/model.ckpt-20")) for one in arguments]
    failed = run(folder, f"refused_{name.replace(' ', '_')}", *TWO, *EVERY, *given)
    assert failed.exit_status != 0
    assert told in failed.stderr
    failed.expect_nothing_started()
