"""A SavedModel answers from raw strings: it contains its lookup tables and their files, wherever it is moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.export.saved_model import export_saved_model
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from tests.single.export.serving import served, train

BATCH, WORDS = 4, ["rot", "grün", "blau", "日本"]
ASKED = np.array(["grün", "nie", "日本", "", "rot"])
NUMBERS = [1, -1, 3, -1, 0]


def dataset() -> ArrayDataset:
    words = np.array([word.encode() for word in WORDS * 3], object)
    arrays = {"word": words, "y": np.arange(12, dtype="float32")}
    return ArrayDataset(train=arrays, validation=arrays, words_per_example=None, seed=1)


def of_file(path: Path) -> Any:
    return tf.lookup.TextFileInitializer(
        str(path), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )


def of_words(path: Path) -> Any:
    return tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(len(WORDS), dtype=tf.int64))


def exported(make: Any, folder: Path) -> Path:
    """Trains a step in plain TensorFlow, and exports the model."""

    def built(size: int | None) -> SingleDeviceGraph:
        return capture(make, {"word": ((size,), "string"), "y": ((size,), "float32")}, seed=1)

    single = built(BATCH)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(single.meta_graph)
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        batch = dataset().train_batch(0, BATCH)
        session.run(single.train_op, {single.features[name]: array for name, array in batch.items()})
        prefix = Path(tf.train.Saver().save(session, str(folder / "ckpt")))
    return export_saved_model(single, lambda: built(None), dataset(), prefix=prefix, folder=folder / "saved_model")


@pytest.mark.parametrize("entries", [of_file, of_words])
def test_a_table_answers_after_the_model_was_moved(entries: Any, tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS), encoding="utf-8")

    def make(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        numbers = tf.lookup.StaticHashTable(entries(path), -1).lookup(features["word"])
        unused = tf.lookup.StaticHashTable(of_words(path), -1).lookup(features["word"])
        weights = tf.get_variable("weights", [])
        loss = tf.reduce_mean(tf.square(weights * tf.cast(numbers + unused, tf.float32) - features["y"]))
        return {"loss": loss, "train_op": train(loss), "outputs": {"numbers": tf.identity(numbers)}}

    folder = exported(make, tmp_path)
    (tmp_path / "else" / "where").mkdir(parents=True)
    moved = folder.rename(tmp_path / "else" / "where" / "model")
    path.unlink()
    assert served(moved, word=ASKED)["numbers"].tolist() == NUMBERS
    assert [file.name for file in moved.glob("assets/*")] == (["words.txt"] if entries is of_file else [])
    described = json.loads((moved / "assets.extra" / "serving.json").read_text(encoding="utf-8"))
    assert described["inputs"] == {"word": {"dtype": "str", "shape": [-1]}}
    assert set(described["example"]["word"]) <= set(WORDS)
    graph = tf2.saved_model.load(str(moved)).graph
    tables = [node.name for node in graph.as_graph_def().node if node.op == "HashTableV2"]
    assert len(tables) == 1  # the other one is only for training


def of_words_model() -> Any:
    words = keras.Input([], dtype="string", name="word")
    there = keras.layers.StringLookup(vocabulary=WORDS[:2])
    numbers = there(words)
    score = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Embedding(3, 2)(numbers))
    model = keras.Model(words, score)
    model.compile("sgd", "mse")
    return model


def test_a_keras_model_answers_as_itself(tmp_path: Path) -> None:
    made = []

    def make() -> Any:
        made.append(of_words_model())
        return made[-1]

    def built(size: int | None) -> SingleDeviceGraph:
        features = {"word": ((size,), "string"), "y": ((size,), "float32")}
        return capture_step(make, features, seed=1, options={"labels": "y"})

    single = built(BATCH)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(single.meta_graph)
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        values = {one.name: session.run(f"{one.name}/Read/ReadVariableOp:0") for one in single.variables}
        prefix = Path(tf.train.Saver().save(session, str(tmp_path / "ckpt")))
    folder = export_saved_model(single, lambda: built(None), dataset(), prefix=prefix, folder=tmp_path / "saved_model")
    for variable in made[0].variables:
        if variable.path in values:
            variable.assign(values[variable.path])
    moved = folder.rename(tmp_path / "moved")
    np.testing.assert_allclose(served(moved, word=ASKED)["output"], made[0](tf2.constant(ASKED)), rtol=1e-6)
