"""`ckpt.warm_start`: a new run takes variables from the checkpoint of another one, in every mode."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.integration.runs import launch
from tests.shared import shared

# With a learning rate of 0, weights keep the values with which a run starts. Most rows of the tables are not touched.
MODEL = (
    *("model=dlrm_keras", "data.cardinalities=[3000,3000]", "data.dense_features=3", "data.examples=100"),
    *("data.validation_examples=0", "data.batch_size=4", "tracking=off"),
)
TABLE, OTHER = "embedding_0/embeddings", "embedding_1/embeddings"
SLOT = "adagrad/embedding_0_embeddings_accumulator"


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""

    def train(folder: Path) -> Path:
        return launch(*MODEL, "train.steps=4", "train.seed=3", "comm=sharded", cwd=folder).expect_success().run_dir

    return shared(tmp_path_factory, "first_for_warm_start", train)


@pytest.fixture(scope="session")
def exported(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights of the run as Keras and TensorFlow save them."""

    def export(folder: Path) -> Path:
        lines = ("action=export", f"ckpt.resume={first}")
        done = launch(*MODEL, *lines, cwd=first.parent, name="exported").expect_success()
        model = keras.models.load_model(done.run_dir / "model.keras")
        model.save_weights(done.run_dir / "theirs.weights.h5")
        tf.train.Checkpoint(model=model).write(str(done.run_dir / "theirs"))
        return done.run_dir

    return shared(tmp_path_factory, "exported_for_warm_start", export)


def values(run_dir: Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run_dir / "ckpt" / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize("mode", ["comm=sharded cluster.workers=3", "comm=hybrid", "comm=ps cluster.servers=2"])
def test_a_run_starts_with_what_it_takes(mode: str, first: Path, tmp_path: Path) -> None:
    lines = ("train.steps=1", "model.learning_rate=0.0", f"ckpt.warm_start={first}", *mode.split())
    take = (f"ckpt.take.rename=[{TABLE}:{OTHER}]", "ckpt.take.exclude=[top_0*]")
    done = launch(*MODEL, *lines, *take, cwd=tmp_path).expect_success()
    before, after = values(first, 4), values(done.run_dir, 1)
    np.testing.assert_array_equal(after[OTHER], before[TABLE])
    for name in ("bottom_0/kernel", "bottom_1/bias", "top_1/kernel", "logit/kernel"):
        np.testing.assert_array_equal(after[name], before[name])
    for name in (TABLE, "top_0/kernel"):
        assert not np.array_equal(after[name], before[name])
    untouched = (after[SLOT] == before[SLOT]).all(axis=1)
    assert untouched.mean() > 0.9 and not (before[SLOT] == before[SLOT][0, 0]).all()
    assert before["adagrad/iteration"] == 4 and after["adagrad/iteration"] == 5
    assert after["adagrad/learning_rate"] == 0
    notes = " ".join(done.plan["notes"])
    assert f"renamed «{OTHER}» from «{TABLE}»" in notes and "«top_0/bias»" in notes
    assert done.sidecar(1)["examples"] == done.summary["global_batch"]


def test_a_run_that_has_begun_goes_on_with_its_own_checkpoint(first: Path, tmp_path: Path) -> None:
    lines = (f"ckpt.warm_start={first}", "comm=local", "ckpt.take.slots=false")
    launch(*MODEL, *lines, "train.steps=1", cwd=tmp_path).expect_success()
    done = launch(*MODEL, *lines, "train.steps=2", cwd=tmp_path).expect_success()
    assert done.summary["first_step"] == 1
    assert f"is a checkpoint of this run, so ckpt.warm_start={first} is not read again" in " ".join(done.plan["notes"])
    assert values(done.run_dir, 2)["adagrad/iteration"] == 2


def test_another_vocabulary_is_refused_or_noted(tmp_path: Path) -> None:
    columns = "data.columns={word: category, y: label}"
    for name, words in {"first": "ab", "same": "abab", "other": "cd"}.items():
        rows = "".join(f"{word},{number % 2}\n" for number, word in enumerate(words * 8))
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_text(f"word,y\n{rows}", encoding="utf-8")
    lines = (
        "model=tabular",
        columns,
        "data.train=rows.csv",
        "data.batch_size=4",
        "tracking=off",
        "comm=local",
        "train.steps=1",
    )
    first = launch(*lines, cwd=tmp_path / "first").expect_success().run_dir
    warm = (*lines, f"ckpt.warm_start={first}")
    refused = launch(*warm, cwd=tmp_path / "other")
    assert refused.exit_status != 0 and "comes from a run with another vocabulary" in refused.stderr
    for name, take in {"same": [], "other": ["ckpt.take.include=[*kernel]"]}.items():
        done = launch(*warm, *take, cwd=tmp_path / name).expect_success()
        assert ("has another vocabulary" in " ".join(done.plan["notes"])) is (name == "other")


FROZEN = '''
"""A model whose table and scale can be frozen."""

import keras


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(), initializer="ones", name="factor")

    def call(self, x):
        return x * self.factor


def make(*, trainable, rate):
    words = keras.Input((2,), dtype="int64", name="categorical")
    rows = keras.layers.Embedding(30, 4, name="words", trainable=trainable)(words)
    scaled = Scale(name="scale", trainable=trainable)(keras.layers.Flatten()(rows))
    model = keras.Model({"categorical": words}, keras.layers.Dense(1, activation="sigmoid", name="last")(scaled))
    model.compile(keras.optimizers.Adagrad(rate, name="adagrad"), "binary_crossentropy")
    return model
'''


def test_frozen_variables_are_taken_and_stay(tmp_path: Path) -> None:
    (tmp_path / "frozen.py").write_text(FROZEN, encoding="utf-8")
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "frozen.yaml").write_text(
        "_target_: frozen.make\nlabels: label\ntrainable: true\nrate: 0.5\n", encoding="utf-8"
    )
    data = ("data=clicks", "data.cardinalities=[20,30]", "data.dense_features=3", "data.examples=100")
    lines = ("--config-dir", "conf", "model=frozen", *data, "data.batch_size=4", "tracking=off", "train.steps=3")
    first = launch(*lines, "comm=local", cwd=tmp_path, name="first").expect_success()
    warm = (f"ckpt.warm_start={first.run_dir}", "model.trainable=false", "ckpt.take.slots=false")
    done = launch(*lines, *warm, "comm=hybrid", cwd=tmp_path, name="second").expect_success()
    before, after = values(first.run_dir, 3), values(done.run_dir, 3)
    assert before["scale/factor"] != 1
    for name in ("words/embeddings", "scale/factor"):
        np.testing.assert_array_equal(after[name], before[name])
    assert not np.array_equal(after["last/kernel"], before["last/kernel"])
    assert after["adagrad/iteration"] == 3


def test_checkpoints_of_plain_tensorflow_are_taken(tmp_path: Path) -> None:
    graph = tf.Graph()
    with graph.as_default():
        kernel = tf.compat.v1.get_variable("old", [32, 1], initializer=tf.compat.v1.ones_initializer(), dtype="float64")
        with tf.compat.v1.Session() as session:
            session.run(kernel.initializer)
            tf.compat.v1.train.Saver([kernel]).save(session, str(tmp_path / "theirs"), write_meta_graph=False)
    lines = ("train.steps=1", "model.learning_rate=0.0", "comm=mpi", f"ckpt.warm_start={tmp_path / 'theirs'}")
    done = launch(*MODEL, *lines, "ckpt.take.rename=[old:logit/kernel]", cwd=tmp_path).expect_success()
    np.testing.assert_array_equal(values(done.run_dir, 1)["logit/kernel"], np.ones([32, 1], np.float32))


@pytest.mark.parametrize("mode", ["comm=sharded cluster.workers=3", "comm=hybrid partition=fixed partition.num=3"])
@pytest.mark.parametrize("source", ["model.keras", "theirs.weights.h5", "theirs"])
def test_files_of_keras_and_checkpoints_of_objects_are_taken(
    source: str, mode: str, exported: Path, tmp_path: Path
) -> None:
    lines = ("train.steps=1", "model.learning_rate=0.0", f"ckpt.warm_start={exported / source}", *mode.split())
    done = launch(*MODEL, *lines, "ckpt.take.exclude=[top_0*]", cwd=tmp_path).expect_success()
    before, after = values(exported.parent / "out", 4), values(done.run_dir, 1)
    for name in (TABLE, OTHER, "bottom_0/kernel", "bottom_1/bias", "logit/kernel"):
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert not np.array_equal(after["top_0/kernel"], before["top_0/kernel"])
    assert (after[SLOT] == before[SLOT]).all(axis=1).mean() > 0.9
    assert before["adagrad/iteration"] == 4 and after["adagrad/iteration"] == 5
    assert f"warm start from {exported / source}: takes «" in " ".join(done.plan["notes"])
    assert not (done.run_dir / "source").exists()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["ckpt.warm_start=nowhere"], "ckpt.warm_start=nowhere (command line): expected a path that exists"),
        (["ckpt.warm_start={first}", "ckpt.resume={first}"], "the run already starts from ckpt.resume="),
        (["ckpt.warm_start={keras}", "data.cardinalities=[4000,3000]"], "add ckpt.take.exclude=['embedding_0/embe"),
        (["ckpt.warm_start={keras}", "ckpt.take.rows=[embedding_0/embeddings:x]"], "a file of Keras has no vocabulary"),
        (["ckpt.warm_start={first}/summary.json"], "there is no checkpoint at this path"),
        (["ckpt.warm_start={first}", "data.cardinalities=[4000,3000]"], "add ckpt.take.exclude=['embedding_0/embe"),
        (["ckpt.warm_start={first}", "ckpt.take.rename=[tower/:query/]"], "the checkpoint has no variable «tower/»"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    lines: list[str], said: str, first: Path, exported: Path, tmp_path: Path
) -> None:
    given = [line.format(first=first, keras=exported / "model.keras") for line in lines]
    done = launch(*MODEL, *given, cwd=tmp_path)
    assert done.exit_status != 0
    assert done.stderr.count(said) == 1
    assert "starting" not in done.stderr and "Traceback" not in done.stderr
