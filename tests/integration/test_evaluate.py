"""`action=evaluate` and `action=export` use the checkpoint of an earlier run."""

from __future__ import annotations

from pathlib import Path

import keras
import mlflow
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.linear import load
from tests.integration.runs import TINY_LM, Run, launch
from tests.shared import shared

EXAMPLES = 50  # not a multiple of two or three batches of 8
MODEL = (
    *("model=dlrm_keras", "data.cardinalities=[20,30]", "data.dense_features=3", "data.examples=100"),
    *(f"data.validation_examples={EXAMPLES}", "data.batch_size=8", "comm=sharded"),
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is recorded in MLflow."""

    def train(folder: Path) -> Path:
        uri = f"tracking.uri=sqlite:///{folder / 'mlflow.db'}"
        done = launch(*MODEL, "train.steps=6", uri, cwd=folder).expect_success()
        return done.run_dir

    return shared(tmp_path_factory, "trained_for_evaluation", train)


@pytest.fixture(scope="session")
def theirs(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained model as plain TensorFlow saves a Keras model."""

    def save(folder: Path) -> Path:
        model = keras.models.load_model(trained / "model.keras")
        return Path(tf.train.Checkpoint(model=model).write(str(folder / "theirs")))

    return shared(tmp_path_factory, "checkpoint_of_plain_tensorflow", save)


def numbers(run: Run) -> dict[str, float]:
    """Returns the loss and the metrics of a validation from a summary."""
    return results(run, "validation")


def results(run: Run, part: str) -> dict[str, float]:
    """Returns what a run has computed on a part of the data."""
    return {name: value for name, value in run.summary.items() if name.startswith(f"{part}_")}


def evaluate(trained: Path, tmp_path: Path, *more: str) -> Run:
    return launch(*MODEL, "action=evaluate", f"ckpt.resume={trained}", *more, cwd=tmp_path)


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_computes_what_the_training_computed(workers: int, trained: Path, tmp_path: Path) -> None:
    uri = f"tracking.uri=sqlite:///{trained.parent / 'mlflow.db'}"
    done = evaluate(trained, tmp_path, f"cluster.workers={workers}", uri).expect_success()
    expected = numbers(Run(trained, 0, "", "", 0.0))
    assert {"validation_loss", "validation_auc"} <= set(expected)
    assert numbers(done) == pytest.approx(expected, rel=1e-6)
    assert done.summary["steps"] == done.summary["first_step"] == 6
    assert f"evaluated after 6 steps: loss {expected['validation_loss']:.6g}" in done.stderr
    assert not done.ckpt_dir.exists()
    client = mlflow.MlflowClient(uri.removeprefix("tracking.uri="))
    found = client.get_run(done.summary["mlflow_run_id"])
    own = Run(trained, 0, "", "", 0.0).summary["mlflow_run_id"]
    assert found.data.tags["parallax.resumed_from"] == own != done.summary["mlflow_run_id"]
    assert found.data.metrics["validation/auc"] == pytest.approx(expected["validation_auc"])


@pytest.mark.parametrize("source", ["model.keras", "theirs"])
def test_a_file_of_keras_and_a_checkpoint_of_tensorflow_give_the_same_numbers(
    source: str, trained: Path, theirs: Path, tmp_path: Path
) -> None:
    uri = f"tracking.uri=sqlite:///{trained.parent / 'mlflow.db'}"
    file = theirs if source == theirs.name else trained / source
    done = evaluate(trained, tmp_path, f"ckpt.resume={file}", "cluster.workers=2", uri).expect_success()
    assert numbers(done) == pytest.approx(numbers(Run(trained, 0, "", "", 0.0)), rel=1e-6)
    assert (done.summary["steps"], done.summary["first_step"]) == (6, 6)
    assert f"resumed from {file} at step 6" in done.stderr
    assert not (done.run_dir / "source").exists()
    found = mlflow.MlflowClient(uri.removeprefix("tracking.uri=")).get_run(done.summary["mlflow_run_id"])
    assert found.data.tags["parallax.resumed_from"] == str(file)


def test_it_evaluates_training_examples_each_of_them_once(trained: Path, tmp_path: Path) -> None:
    uri = f"tracking.uri=sqlite:///{trained.parent / 'mlflow.db'}"
    found = [
        evaluate(trained, tmp_path / str(workers), "read.part=train", f"cluster.workers={workers}", uri)
        for workers in (1, 2)
        if not (tmp_path / str(workers)).mkdir()
    ]
    one, two = [results(run.expect_success(), "train") for run in found]
    assert one == pytest.approx(two, rel=1e-6)
    assert set(one) == {"train_loss", "train_auc"} and not numbers(found[0])
    assert one["train_loss"] != pytest.approx(numbers(Run(trained, 0, "", "", 0.0))["validation_loss"], rel=1e-3)
    recorded = mlflow.MlflowClient(uri.removeprefix("tracking.uri=")).get_run(found[0].summary["mlflow_run_id"])
    assert recorded.data.metrics["train/auc"] == pytest.approx(one["train_auc"])
    assert not any(name.startswith("validation/") for name in recorded.data.metrics)
    assert "train after step 6: loss " in found[0].stderr


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["read.part=test"], "read.part=test (command line): the data has no test examples"),
        (["data.validation_examples=0"], "nothing can be evaluated: there are no validation examples"),
        (["ckpt.resume=auto"], "has no checkpoint; set ckpt.resume to a checkpoint"),
        (["ckpt.resume=never"], "ckpt.resume=never (command line): action=evaluate reads a checkpoint"),
        (["ckpt=off"], "this action reads a checkpoint; omit ckpt=off"),
        (["ckpt.resume=nowhere"], "ckpt.resume=nowhere (command line): expected auto, never, or a path that exists"),
        (
            ["model.embedding_size=8"],
            "8] in the model. Set ckpt.resume to a checkpoint of this model",
        ),
        (
            ["model.optimizer=sgd"],
            "the checkpoint belongs to another model or optimizer. Set ckpt.resume to a checkpoint",
        ),
        (["ckpt.resume={trained}/model.keras", "action=train"], "begin a new run with ckpt.warm_start instead"),
        (["ckpt.resume={theirs}", "action=train"], "begin a new run with ckpt.warm_start="),
        (["ckpt.resume={theirs}", "data.cardinalities=[20,30,9]"], "has no variable «embedding_2/embeddings» of the m"),
        (
            ["ckpt.resume={trained}/model.keras", "data.cardinalities=[20,31]"],
            "variable «embedding_1/embeddings» has shape [30, 16] in this file, but shape [31, 16] in the model",
        ),
    ],
)
def test_without_a_checkpoint_or_examples_it_is_refused(
    lines: list[str], said: str, trained: Path, theirs: Path, tmp_path: Path
) -> None:
    given = [line.format(trained=trained, theirs=theirs) for line in lines]
    done = evaluate(trained, tmp_path, "tracking=off", *given)
    assert done.exit_status != 0
    assert done.stderr.count(said) == 1
    assert "starting" not in done.stderr and "Traceback" not in done.stderr


def test_the_record_of_the_trained_run_stays(trained: Path, tmp_path: Path) -> None:
    before = (trained / "summary.json").read_bytes()
    done = evaluate(trained, tmp_path, "tracking=off", f"run_dir={trained}")
    assert done.exit_status == 2
    assert "this folder has a run with action=train; omit run_dir or choose another folder" in done.stderr
    assert (trained / "summary.json").read_bytes() == before


@pytest.mark.parametrize("source", ["", "model.keras", "theirs"])
def test_an_export_equals_that_of_the_training(source: str, trained: Path, theirs: Path, tmp_path: Path) -> None:
    file = theirs if source == theirs.name else trained / source
    lines = ("action=export", f"ckpt.resume={file}", "tracking=off")
    done = launch(*MODEL, *lines, cwd=tmp_path).expect_success()
    assert f"exported: {done.run_dir / 'saved_model'}, {done.run_dir / 'model.keras'}" in done.stderr
    given = {
        "dense": tf.constant(np.random.default_rng(1).random([5, 3]), tf.float32),
        "categorical": tf.constant(np.arange(10).reshape(5, 2), tf.int64),
    }
    answers = [
        tf.saved_model.load(str(folder / "saved_model")).signatures["serving_default"](**given)
        for folder in (trained, done.run_dir)
    ]
    for name, values in answers[0].items():
        np.testing.assert_array_equal(values, answers[1][name])
    assert done.summary["steps"] == 6
    assert done.summary["ckpt_path"] == str(file if source else trained / "ckpt" / "model.ckpt-6")
    saved = [keras.models.load_model(folder / "model.keras") for folder in (trained, done.run_dir)]
    for one, other in zip(*[[*model.variables, *model.optimizer.variables] for model in saved], strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_checkpoint_of_a_saver_is_evaluated_by_a_graph(tmp_path: Path) -> None:
    """The script's Saver kept no slots of an optimizer."""
    examples, slope, intercept = 50, 3.0, -1.0
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in {"w": slope, "b": intercept}.items():
            tf.compat.v1.get_variable(name, initializer=tf.constant(value))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "theirs"))
    data = ("model=simple", "optimizer=adam", f"data.validation_examples={examples}", "data.batch_size=8")
    lines = (f"ckpt.resume={tmp_path / 'theirs'}", "action=evaluate", "cluster.workers=2", "tracking=off")
    done = launch(*data, *lines, "comm=hybrid", cwd=tmp_path).expect_success()
    points = load(examples=100, validation_examples=examples, noise=0.1, seed=1).validation_batch(0, examples)
    expected = np.square(slope * points["x"] + intercept - points["y"]).mean()
    assert done.summary["validation_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_graph_for_one_batch_size_evaluates_each_example_once(tmp_path: Path) -> None:
    """The last examples are no whole batch, and lookups need all ranks, also those that have no batch left."""
    model = ("model=lm", *TINY_LM, "data.validation_examples=37", "tracking=off", "comm=sharded")
    first = launch(*model, "train.steps=2", cwd=tmp_path, name="first").expect_success()
    found = []
    for size, workers in ((1, 1), (4, 3), (7, 2)):
        lines = ("action=evaluate", f"ckpt.resume={first.run_dir}", f"data.batch_size={size}")
        done = launch(*model, *lines, f"cluster.workers={workers}", cwd=tmp_path, name=f"size_{size}").expect_success()
        found.append(done.summary["validation_loss"])
    assert found == pytest.approx([found[0]] * 3, rel=1e-6)
