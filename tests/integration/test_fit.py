"""`fit` compared with plain Keras: the same script, the same weights, history and calls of callbacks."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from mlflow import MlflowClient

from tests import forked

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "train_keras.py"
RAGGED = Path(__file__).parent / "scripts" / "train_ragged.py"
DOCUMENT = ROOT / "docs" / "fit.md"


def run(script: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script as a user would, in processes that begin with TensorFlow already imported."""
    return subprocess.run(
        [forked.STUB, script, *arguments],
        cwd=cwd,
        env={**os.environ, **forked.environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def train(cwd: Path, comm: str | None, **asked: Any) -> dict[str, Any]:
    """Returns the results that the script leaves."""
    left = cwd / f"{comm}.json"
    done = run(SCRIPT, json.dumps({"comm": comm, "left": str(left), **asked}), cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(left.read_text())
    return found


def expect_equal(found: Any, expected: Any, where: str = "") -> None:
    """Checks keys and lengths for equality, and numbers within the rounding that the order of float32 additions
    causes."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            expect_equal(found[key], expected[key], f"{where}.{key}")
    else:
        assert np.shape(found) == np.shape(expected), where
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-6, err_msg=where)


@pytest.mark.parametrize("comm", ["sharded", "hybrid", "ps", "mpi", "auto"])
def test_equals_plain_keras(tmp_path: Path, comm: str) -> None:
    """Two calls; the second continues from the first. Learning rates change, and a callback reads weights."""
    expected, found = (train(tmp_path, mode, epochs=[3, 2]) for mode in (None, comm))
    assert found["calls"] == expected["calls"] == 2
    for key in ("history", "weights", "optimizer", "evaluated"):
        expect_equal(found[key], expected[key], key)
    assert [one[0] for one in found["seen"]] == [one[0] for one in expected["seen"]] == [0, 1, 2, 0, 1]
    for ours, theirs in zip(found["seen"], expected["seen"], strict=True):
        expect_equal(ours[1], theirs[1], "logs")
        np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-5)


@pytest.mark.parametrize("clip", [{"clipnorm": 0.003}, {"global_clipnorm": 0.02}])
def test_norms_are_those_of_plain_keras_if_no_id_repeats(clip: dict[str, float], tmp_path: Path) -> None:
    """With repeated ids they are not: docs/repeated-ids.md."""
    expected, found = (train(tmp_path, mode, epochs=[2], clip=clip) for mode in (None, "hybrid"))
    unclipped = train(tmp_path, None, epochs=[2])
    for name, weights in expected["weights"].items():
        np.testing.assert_allclose(found["weights"][name], weights, rtol=1e-5, atol=1e-6, err_msg=name)
    assert np.abs(np.subtract(table_of(unclipped), table_of(expected))).max() > 1e-2


def table_of(left: dict[str, Any]) -> Any:
    """Returns the rows of the table."""
    return left["weights"]["table/embeddings"]


def test_ragged_and_sparse_features(tmp_path: Path) -> None:
    """Two epochs of five batches, and a validation whose last batch is smaller."""
    left = {}
    for comm in ("plain", "sharded"):
        done = run(RAGGED, comm, str(tmp_path / comm), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        left[comm] = json.loads((tmp_path / comm).read_text())
    expect_equal(left["sharded"], left["plain"])


def test_one_worker_and_checkpoints_in_another_folder(tmp_path: Path) -> None:
    overrides = [f"ckpt.dir={tmp_path / 'elsewhere'}"]
    expected, found = (train(tmp_path, mode, epochs=[2], overrides=overrides) for mode in (None, "local"))
    for key in ("history", "weights", "optimizer"):
        expect_equal(found[key], expected[key], key)
    assert list((tmp_path / "elsewhere").glob("model.ckpt-*"))


def test_a_callback_ends_the_training_for_all_workers(tmp_path: Path) -> None:
    expected, found = (train(tmp_path, mode, epochs=[5], patience=1) for mode in (None, "sharded"))
    assert found["epoch"] == expected["epoch"] == [0, 1]
    expect_equal(found["weights"], expected["weights"])
    expect_equal(found["optimizer"], expected["optimizer"])


def test_the_script_of_the_documentation_needs_two_other_lines(tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (after,) = re.findall(r"```python\n# parallax_runner\n(.*?)```", text, re.S)
    (changes,) = re.findall(r"```diff\n(.*?)```", text, re.S)
    (old,) = re.findall(r"^-(.*)$", changes, re.M)
    added, called = re.findall(r"^\+(.*)$", changes, re.M)
    assert after.splitlines().count(added) == after.splitlines().count(called) == 1
    before = after.replace(f"{added}\n", "").replace(called, old)
    assert "parallax_runner" not in before
    printed = []
    for name, text in (("before", before), ("after", after)):
        (tmp_path / f"{name}.py").write_text(text)
        done = run(tmp_path / f"{name}.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        printed.append([float(number) for number in re.findall(r"\d\.\d+", done.stdout.splitlines()[-1])])
    # The words of a batch repeat, and plain Keras does not merge them: results are close, not equal.
    np.testing.assert_allclose(printed[1], printed[0], atol=0.1)
    assert printed[1][0] == pytest.approx(printed[1][2], abs=1e-4)  # the history and the remaining model agree
    check_what_mlflow_has(tmp_path)


def check_what_mlflow_has(folder: Path) -> None:
    """Checks that MLflow has the trained model of the last step as a Keras file, and the script's dataset."""
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (stored,) = client.search_runs([client.get_experiment_by_name("parallax_runner").experiment_id])
    model = keras.models.load_model(client.download_artifacts(stored.info.run_id, "model.keras", str(folder)))
    (logged,) = client.search_logged_models([stored.info.experiment_id])
    assert logged.name == f"step-{model.optimizer.iterations.numpy()}"
    assert {one.dataset.name for one in stored.inputs.dataset_inputs} == {"fit"}


VERIFIED = """
import keras
import tensorflow as tf

import parallax_runner

keras.utils.set_random_seed(1)
ids = tf.reshape(tf.range(150) * 7 % 20, [50, 3])
examples = tf.data.Dataset.from_tensor_slices((ids, tf.cast(ids[:, :1], "float32") / 20)).cache().shuffle(50, seed=3)
data = examples.batch(12).map(lambda x, y: (x, 2 * y))
list(data)
hidden = [keras.layers.Embedding(20, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input([3], dtype="int32"), *hidden])
model.compile("sgd", "mse", steps_per_execution=3)
assert parallax_runner.fit(model, data, epochs=3, overrides=["action=verify", "tracking=off"]) is None
"""


SAVED = "numpy.save({path!r}, numpy.concatenate([numpy.ravel(one) for one in model.get_weights()]))"


def test_a_dataset_is_verified(tmp_path: Path) -> None:
    """Over three passes, each with a partial batch; the script has read its data before."""
    (tmp_path / "script.py").write_text(VERIFIED)
    done = run(tmp_path / "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    assert "on one device, every variable matches after each of 10 steps" in told
    assert "verified: after every 10 of 15 steps, every variable matches the result on one device" in told
    assert "omitted from each pass" not in told
    assert told.count("the model's steps_per_execution=3 is ignored") == 1


def test_two_calls_train_as_one_call_of_as_many_epochs_does(tmp_path: Path) -> None:
    """The second call reads the data in the order of the second epoch. Both calls use the same folder. A process that
    repeats the script trains nothing, and gets the same results."""
    weights, losses, told = [], [], []
    for name, epochs in (("once", [2]), ("twice", [1, 1]), ("twice", [1, 1])):
        folder = f"""overrides=["tracking=off", "run_dir={name}"]"""
        calls = "\n".join(f"print(parallax_runner.fit(model, data, epochs={n}, {folder}).history)" for n in epochs)
        saved = tmp_path / f"{name}.npy"
        script = VERIFIED[: VERIFIED.index("assert ")] + f"{calls}\nimport numpy\n" + SAVED.format(path=str(saved))
        (tmp_path / f"{name}.py").write_text(script)
        done = run(tmp_path / f"{name}.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        weights.append(np.load(saved))
        losses.append(re.findall(r"\{'loss': \[(.*?)\]\}", done.stdout))
        told.append(done.stderr.count("returns the result of the finished run in"))
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-5, atol=1e-7)
    assert losses[0] == [", ".join(losses[1])]
    np.testing.assert_array_equal(weights[2], weights[1])
    assert (losses[2], told) == (losses[1], [0, 0, 2])


UNSEEDED = """
import random, sys

import keras, tensorflow as tf
import parallax_runner

random.seed(1)  # draws the initial values, and does not seed the shuffle
ids = tf.reshape(tf.range(150) * 7 % 20, [50, 3])
data = tf.data.Dataset.from_tensor_slices((ids, tf.cast(ids[:, :1], "float32") / 20)).shuffle(50).batch(12)
hidden = [keras.layers.Embedding(20, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input([3], dtype="int32"), *hidden])
model.compile("sgd", "mse")
epochs, *overrides = sys.argv[1:]
print(parallax_runner.fit(model, data, epochs=int(epochs), overrides=["tracking=off", *overrides]).epoch)
"""


def test_an_order_that_cannot_be_repeated_is_resumed_approximately(tmp_path: Path) -> None:
    """The second run of the script goes on after the two epochs of the first one. Its history has all epochs."""
    (tmp_path / "script.py").write_text(UNSEEDED)
    kept = f"ckpt.dir={tmp_path / 'kept'}"
    for epochs, trained in (("2", [0, 1]), ("3", [0, 1, 2])):
        done = run(tmp_path / "script.py", epochs, "++data.resume='approximate'", kept, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == trained
    refused = run(tmp_path / "script.py", "4", kept, cwd=tmp_path)
    assert refused.returncode != 0 and "a shuffle has no seed" in refused.stderr


def test_the_rows_of_the_scripts_data_decide_under_auto(tmp_path: Path) -> None:
    """Each of the dataset's full steps touches 18 of 20 rows or fewer on a rank, and the last step of a pass 3; a bound
    would be 18 for each step."""
    overrides = """["action=plan", "tracking=off", "run_dir=planned"]"""
    script = VERIFIED.replace('["action=verify", "tracking=off"]', overrides).replace(
        "epochs=3", 'epochs=3, comm="auto"'
    )
    (tmp_path / "script.py").write_text(script)
    done = run(tmp_path / "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    planned, measured = (
        json.loads((tmp_path / "planned" / name).read_text()) for name in ("plan.json", "measured.json")
    )
    assert planned["rows_measured"] == measured["made"]
    (table,) = measured["rows"]
    ids = np.arange(150).reshape(50, 3) * 7 % 20
    most = len(np.unique(ids))
    assert (table["rows"], table["ids"]) == (20, (4 * 18 + 3) / 5)
    assert 0 < table["distinct"] < table["merged"] <= most


PLANNED = """
import keras
import parallax_runner
import tensorflow as tf

read = []


def examples():
    for number in range(3000):
        read.append(number)
        yield [number / 3000.0], [1.0]


spec = (tf.TensorSpec([1]), tf.TensorSpec([1]))
dataset = tf.data.Dataset.from_generator(examples, output_signature=spec).batch(4)
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
overrides = ["action=plan", "tracking=off", "run_dir=planned", "data.resume=approximate"]
parallax_runner.fit(model, dataset, validation_data=dataset, epochs=2, workers=2, overrides=overrides)
print(len(read))
"""


def test_a_plan_does_not_count_the_examples(tmp_path: Path) -> None:
    """It reads one batch at most, a few examples ahead, to see whether there are validation examples."""
    (tmp_path / "script.py").write_text(PLANNED)
    done = run(tmp_path / "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 100
    assert (tmp_path / "planned" / "plan.json").exists()


def test_a_failed_run_ends_the_script_with_its_status(tmp_path: Path) -> None:
    asked = {"comm": "mpi", "left": str(tmp_path / "left"), "epochs": [1], "overrides": ["ckpt.dir=/proc/nowhere"]}
    done = run(SCRIPT, json.dumps(asked), cwd=tmp_path)
    assert done.returncode != 0 and "/proc/nowhere" in done.stderr
    assert not (tmp_path / "left").exists()
