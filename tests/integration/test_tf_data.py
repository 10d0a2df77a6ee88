"""A function that returns a tf.data.Dataset, on the command line: verified, and continued by other workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from tests.integration.runs import launch

CODE = '''
"""A model and data of plain Keras and TensorFlow."""

import keras
import tensorflow as tf


def make_model(rows):
    inputs = keras.Input([3], dtype="int32", name="id")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(rows, 2)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.2), "mse", steps_per_execution=4)
    return model


def make_data(rows, batch, is_seeded=True, passes=None):
    ids = tf.reshape(tf.range(150) * 7 % rows, [50, 3])
    examples = tf.data.Dataset.from_tensor_slices(({"id": ids}, tf.cast(ids[:, :1], "float32") / rows))
    if passes is not None:
        examples = examples.repeat(passes).filter(lambda *_: True)  # TensorFlow does not know the number of examples
    return examples.shuffle(50, seed=3 if is_seeded else None).batch(batch), examples.batch(batch)


def make_step(rows):
    table, weights = tf.Variable(tf.ones([rows, 2]) / 3, name="table"), tf.Variable([0.5, -0.3], name="weights")

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            found = tf.gather(table, batch["words"])
            means = tf.reduce_mean(found, axis=1)
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(means, weights) - batch["y"]))
        slopes = tape.gradient(loss, [table, weights])
        table.scatter_sub(tf.IndexedSlices(0.2 * slopes[0].values, slopes[0].indices))
        weights.assign_sub(0.2 * slopes[1])
        return loss

    return step


def make_ragged(rows, batch):
    lengths = tf.range(50) % 4 + 1
    words = tf.RaggedTensor.from_row_lengths(tf.range(tf.reduce_sum(lengths)) * 7 % rows, lengths)
    examples = tf.data.Dataset.from_tensor_slices({"words": words, "y": tf.cast(lengths, "float32") / 4})
    # The types of the batches do not show their size.
    return examples.shuffle(50, seed=3).batch(batch).map(lambda x: {"words": x["words"], "y": x["y"] * 2})
'''
MODEL = "_target_: rec.make_model\nrows: 20\nlabels: y\n"
DOCUMENT = Path(__file__).parents[2] / "docs" / "training-loop.md"
DATA = "_target_: rec.make_data\nrows: 20\nbatch: 12\nis_seeded: true\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "rec.py").write_text(CODE)
    for group, text in (("model", MODEL), ("data", DATA)):
        (tmp_path / "myconf" / group).mkdir(parents=True)
        (tmp_path / "myconf" / group / "rec.yaml").write_text(text)
    return tmp_path


def arguments(folder: Path, *more: str) -> list[str]:
    return [f"--config-dir={folder / 'myconf'}", "model=rec", "data=rec", "comm=sharded", "tracking=off", *more]


def checkpoint(prefix: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_other_workers_go_on_where_two_have_stopped(project: Path) -> None:
    """Nine steps are more than two passes of four batches; the third worker joins within the second pass."""

    def run(folder: str, *more: str) -> str:
        done = launch(*arguments(project, *more), cwd=project / folder, python_path=project).expect_success()
        return str(done.summary["ckpt_path"])

    whole = checkpoint(run("whole", "train.steps=9"))
    first = run("first", "train.steps=6")
    three = ("cluster.workers=3", f"ckpt.resume={first}")
    gone_on = checkpoint(run("second", "train.steps=9", *three))
    assert whole.keys() == gone_on.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(gone_on[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_an_order_that_cannot_be_repeated_is_resumed_approximately(project: Path) -> None:
    """Nine steps of an unseeded shuffle, in two runs; a run without data.resume is refused before it starts."""
    unseeded = ("data.is_seeded=false", "++data.resume=approximate")
    first = launch(*arguments(project, *unseeded, "train.steps=6"), cwd=project / "first", python_path=project)
    saved = str(first.expect_success().summary["ckpt_path"])
    resumed = (*unseeded, "train.steps=9", f"ckpt.resume={saved}")
    second = launch(*arguments(project, *resumed), cwd=project / "second", python_path=project).expect_success()
    assert (second.summary["first_step"], second.summary["steps"]) == (6, 9)
    before, after = checkpoint(saved), checkpoint(str(second.summary["ckpt_path"]))
    assert not np.array_equal(before["embedding/embeddings"], after["embedding/embeddings"])
    refused = launch(
        *arguments(project, "data.is_seeded=false", f"ckpt.resume={saved}"), cwd=project / "third", python_path=project
    )
    assert refused.exit_status != 0 and "set ++data.resume=approximate" in refused.stderr


def test_the_loop_of_the_documentation(tmp_path: Path) -> None:
    """The script with a loop ends with the same weights as the page's version of it."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for language, name, path in (
        ("python", "loop", "loop.py"),
        ("python", "steps.py", "steps.py"),
        ("yaml", "myconf/model/steps.yaml", "myconf/model/steps.yaml"),
        ("yaml", "myconf/data/steps.yaml", "myconf/data/steps.yaml"),
    ):
        (code,) = re.findall(rf"```{language}\n# {re.escape(name)}\n(.*?)```", text, re.S)
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(code)
    (command,) = re.findall(r"^python -m parallax_runner (--config-dir=myconf .*)$", text, re.M)
    loop, env = [forked.STUB, tmp_path / "loop.py"], {**os.environ, **forked.environment()}
    printed = subprocess.run(loop, env=env, capture_output=True, text=True, check=True, timeout=120).stdout
    lines = [*command.replace("myconf", str(tmp_path / "myconf")).split(), "tracking=off"]
    run = launch(*lines, cwd=tmp_path / "out", python_path=tmp_path).expect_success()
    saved = checkpoint(str(run.summary["ckpt_path"]))
    norms = [float(np.linalg.norm(saved[name])) for name in ("table", "weights")]
    np.testing.assert_allclose(norms, [float(number) for number in printed.split()], rtol=1e-5)


def test_equals_one_device(project: Path) -> None:
    """Also in steps with a partial batch. The terminal tells once what is not used."""
    run = launch(*arguments(project, "action=verify", "train.steps=9"), cwd=project / "out", python_path=project)
    run.expect_success()
    assert run.summary["verified"]
    told = run.stdout + run.stderr
    assert "omitted from each pass" not in told
    assert told.count("the model's steps_per_execution=4 is ignored") == 1


def test_auto_measures_the_rows_of_its_batches(project: Path) -> None:
    """Each batch of a rank has six examples with three ids each, of twenty rows. The examples are not counted."""
    wanted = arguments(project, "action=plan", "comm=auto", "+data.passes=50")
    run = launch(*wanted, cwd=project / "out", python_path=project)
    run.expect_success()
    logs = [path.read_text() for path in run.run_dir.rglob("*.log")]
    assert logs and not any(re.search(r"counted \d+ examples", log) for log in logs)
    (table,) = json.loads((run.run_dir / "measured.json").read_text())["rows"]
    assert (table["rows"], table["ids"]) == (20, 18.0)
    assert table["distinct"] < table["merged"] <= 20


def test_a_training_step_with_ragged_words_equals_one_device(project: Path) -> None:
    """Over two passes, the second in another order."""
    ragged = ("~model.labels", "model._target_=rec.make_step", "~data.is_seeded", "data._target_=rec.make_ragged")
    lines = arguments(project, *ragged, "action=verify", "train.steps=6")
    run = launch(*lines, cwd=project / "out", python_path=project).expect_success()
    assert run.summary["verified"] and run.summary["untouched_verified"]
    assert "on one device, every variable matches after each of 6 steps" in run.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("data.is_seeded=false", "a shuffle has no seed"),
        ("+data.batch_size=5", "expected 12 / 2 = 6"),
        ("cluster.workers=5 comm=ps comm.sync=false", "12 examples cannot be divided into 5 equal parts"),
    ],
)
def test_refused_before_anything_starts(project: Path, line: str, told: str) -> None:
    run = launch(*arguments(project, *line.split(), "train.steps=2"), cwd=project / "out", python_path=project)
    assert run.exit_status != 0 and told in run.stderr and not list(run.run_dir.glob("ckpt/[!.]*"))
