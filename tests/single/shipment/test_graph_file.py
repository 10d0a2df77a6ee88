"""A graph that was written to files trains in another process as the captured graph does, without Keras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import LaunchError
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_model
from parallax_runner.graph.traced.row_updates import SparseUpdates
from parallax_runner.shipment.graph_file import GRAPH, VALUES, load_graph, save_graph
from parallax_runner.shipment.stored_values import python_op, with_constants, with_stored_values, write_values

MANY = 200_000  # words
ROWS, STEPS, BATCH = 2000, 3, 4
# Loads the graph in the folder of its first argument, trains on the batch in its second, and writes all variables.
TRAINS = """
import sys
from pathlib import Path
import numpy as np
from parallax_runner.process.tensorflow_import import import_tensorflow
import_tensorflow()
import tensorflow.compat.v1 as tf
from parallax_runner.shipment.graph_file import load_graph
folder, batch = Path(sys.argv[1]), np.load(sys.argv[2])
single = load_graph(folder)
with tf.Graph().as_default() as graph:
    tf.import_graph_def(single.meta_graph.graph_def, name="")
    with tf.Session(graph=graph) as session:
        session.run([graph.get_operation_by_name(one.initializer) for one in single.variables])
        feeds = {single.features[name]: batch[name] for name in batch.files}
        for _ in range(int(sys.argv[4])):
            session.run(graph.get_operation_by_name(single.train_op), feeds)
        handles = [graph.get_operation_by_name(one.name).outputs[0] for one in single.variables]
        reads = [tf.raw_ops.ReadVariableOp(resource=one, dtype=one.op.get_attr("dtype")) for one in handles]
        values = session.run(reads)
np.savez(sys.argv[3], **{one.name: value for one, value in zip(single.variables, values)})
assert "keras" not in sys.modules, "Keras was imported"
"""


def write(single: SingleDeviceGraph, folder: Path) -> SingleDeviceGraph:
    """Writes a graph as the driver does. Returns the graph that a plan is made for."""
    folder.mkdir(parents=True)
    stored = with_stored_values(single)
    write_values(stored, folder / VALUES)
    save_graph(stored.single, folder, libraries=[])
    return stored.single


def trained_elsewhere(folder: Path, batch: dict[str, Any], steps: int) -> dict[str, np.ndarray]:
    """The variables after `steps` steps of the graph in `folder`, in a new process."""
    given, found = folder.parent / "batch.npz", folder.parent / "values.npz"
    np.savez(given, **batch)
    subprocess.run([sys.executable, "-c", TRAINS, folder, given, found, str(steps)], check=True)
    with np.load(found) as values:
        return dict(values)


def trained_here(single: SingleDeviceGraph, batch: dict[str, Any], steps: int) -> dict[str, np.ndarray]:
    """The same for the graph as it was captured."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(single.meta_graph.graph_def, name="")
        with tf.Session(graph=graph) as session:
            session.run([graph.get_operation_by_name(one.initializer) for one in single.variables])
            for _ in range(steps):
                feeds = {single.features[name]: value for name, value in batch.items()}
                session.run(graph.get_operation_by_name(single.train_op), feeds)
            handles = [graph.get_operation_by_name(one.name).outputs[0] for one in single.variables]
            reads = [tf.raw_ops.ReadVariableOp(resource=one, dtype=one.op.get_attr("dtype")) for one in handles]
            return dict(zip((one.name for one in single.variables), session.run(reads), strict=True))


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """A model whose table is larger than a constant of the graph may be."""
    keras.utils.set_random_seed(3)
    made = keras.Sequential(
        [
            keras.Input([3], dtype="int32"),
            keras.layers.Embedding(ROWS, 4, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.0),
            keras.layers.Dense(1),
        ]
    )
    made.compile("adam", "mse", metrics=["mae"])
    return made


@pytest.fixture(scope="module")
def batch() -> dict[str, Any]:
    generator = np.random.default_rng(1)
    words = generator.integers(0, ROWS, [BATCH, 3]).astype("int32")
    return {"x": words, "y": generator.standard_normal([BATCH, 1]).astype("float32")}


@pytest.fixture(scope="module")
def captured(model: keras.Model, batch: dict[str, Any]) -> SingleDeviceGraph:
    def as_batch(features: Any) -> Any:
        return features["x"], features["y"], None

    specs = {name: tf.TensorSpec(array.shape, array.dtype) for name, array in batch.items()}
    return capture_model(model, specs, as_batch, seed=1, sparse_updates=SparseUpdates.EXACT)


@pytest.mark.parametrize("name", ["run", "run[1]*"])  # TensorFlow takes the second for a pattern
def test_a_keras_model_trains_without_keras(
    name: str, captured: SingleDeviceGraph, batch: dict[str, Any], tmp_path: Path
) -> None:
    assert captured.initial_values, "the table is not read from this process"
    write(captured, tmp_path / name)
    expected = trained_here(captured, batch, STEPS)
    found = trained_elsewhere(tmp_path / name, batch, STEPS)
    assert found.keys() == expected.keys()
    for variable, value in expected.items():
        np.testing.assert_array_equal(found[variable], value, err_msg=variable)


def test_the_values_are_those_of_the_driver(
    captured: SingleDeviceGraph, model: keras.Model, batch: dict[str, Any], tmp_path: Path
) -> None:
    """A value that the model gets after the capture counts, for the driver's weights are the truth."""
    table = model.get_layer("table").embeddings
    before = table.numpy()
    try:
        table.assign(before + 1)
        write(captured, tmp_path / "run")
        found = trained_elsewhere(tmp_path / "run", batch, 0)
    finally:
        table.assign(before)
    (name,) = (name for name in found if name.endswith("table/embeddings"))
    np.testing.assert_array_equal(found[name], before + 1)


def test_everything_but_what_only_this_process_has_is_kept(captured: SingleDeviceGraph, tmp_path: Path) -> None:
    planned = write(captured, tmp_path / "run")
    found = load_graph(tmp_path / "run")
    assert found == planned.__class__(**{**planned.__dict__, "meta_graph": found.meta_graph, **_metrics(found)})
    assert found.fingerprint != captured.fingerprint
    assert planned.metrics is not None and captured.metrics is not None
    assert planned.metrics.results is captured.metrics.results  # the driver still computes metrics
    assert found.metrics is not None
    with pytest.raises(RuntimeError, match="only the driver"):
        found.metrics.results([])


def _metrics(found: SingleDeviceGraph) -> dict[str, Any]:
    return {"metrics": found.metrics, "validation_metrics": found.validation_metrics}


def v1_model(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """A table that begins with a large constant, beside a large constant that each step reads."""
    generator = np.random.default_rng(2)
    first = generator.standard_normal([ROWS, 100])  # 1.6 MB
    mask = tf.constant(generator.standard_normal([ROWS, 80]), name="mask")  # 1.28 MB
    table = tf.get_variable("table", dtype=tf.float64, initializer=tf.constant(first))
    looked_up = tf.nn.embedding_lookup(table, features["x"]) * tf.reduce_sum(tf.gather(mask, features["x"][0]))
    loss = tf.reduce_mean(looked_up**2)
    return {"loss": loss, "train_op": tf.train.AdagradOptimizer(0.1).minimize(loss)}


def test_a_large_constant_of_an_initializer_is_stored_apart(tmp_path: Path) -> None:
    single = capture(v1_model, {"x": ((BATCH,), "int32")}, seed=1)
    planned = write(single, tmp_path / "run")
    stored = with_stored_values(single)
    assert list(stored.values) == [name for name in stored.values if "mask" not in name] != []
    assert planned.meta_graph.ByteSize() < single.meta_graph.ByteSize() - ROWS * 100 * 8 + 10_000
    batch = {"x": np.array([1, 5, 5, 7], "int32")}
    expected = trained_here(single, batch, 2)
    for variable, value in trained_elsewhere(tmp_path / "run", batch, 2).items():
        np.testing.assert_array_equal(value, expected[variable], err_msg=variable)


def with_words(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """Looks up words in a table of many words, which start at 10."""
    words = np.array([f"word {number}" for number in range(MANY)])
    entries = tf.lookup.KeyValueTensorInitializer(words, np.arange(10, MANY + 10))
    numbers = tf.lookup.StaticHashTable(entries, -1).lookup(features["word"])
    weights = tf.get_variable("weights", [], tf.float64)
    scaled = weights * tf.cast(numbers, tf.float64)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(scaled))
    return {"loss": tf.reduce_mean(scaled), "train_op": train_op, "outputs": {"numbers": tf.identity(numbers)}}


def looked_up(single: SingleDeviceGraph, words: list[str]) -> list[int]:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(single.meta_graph.graph_def, name="")
        tables = single.meta_graph.collection_def[tf.GraphKeys.TABLE_INITIALIZERS].node_list.value
        session.run([graph.get_operation_by_name(name) for name in tables])
        found: list[int] = session.run(single.outputs["numbers"], {single.features["word"]: words}).tolist()
        return found


def test_the_words_of_a_large_table_are_stored_apart(tmp_path: Path) -> None:
    single = capture(with_words, {"word": ((None,), "string")}, seed=1)
    write(single, tmp_path / "stored")
    stored, found = with_stored_values(single), load_graph(tmp_path / "stored")
    assert len(stored.values) == 2  # the words and their numbers
    assert found.meta_graph.ByteSize() < 100_000 < single.meta_graph.ByteSize()
    words, numbers = ["word 7", "no word", f"word {MANY - 1}"], [17, -1, MANY + 9]
    for graph in (single, found, with_constants(stored)):
        assert looked_up(graph, words) == numbers


def test_another_graph_is_refused(captured: SingleDeviceGraph, tmp_path: Path) -> None:
    write(captured, tmp_path / "run")
    path = tmp_path / "run" / GRAPH
    meta_graph = tf.MetaGraphDef.FromString(path.read_bytes())
    meta_graph.graph_def.node[0].name += "_"
    path.write_bytes(meta_graph.SerializeToString())
    with pytest.raises(LaunchError, match=r"graph.pb: it is not the graph that the driver has written"):
        load_graph(tmp_path / "run")


def test_python_of_the_user_is_found() -> None:
    def model(features: dict[str, tf.Tensor]) -> dict[str, Any]:
        weights = tf.get_variable("weights", [2], tf.float64)
        scale = tf.numpy_function(lambda x: x, [features["x"]], tf.float64, name="mine")
        loss = tf.reduce_sum(weights * tf.reshape(scale, [2]))
        return {"loss": loss, "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss)}

    assert "mine" in (python_op(capture(model, {"x": ((2,), "float64")}, seed=1)) or "")


def test_values_of_this_process_are_no_python_of_the_user(captured: SingleDeviceGraph) -> None:
    assert python_op(captured) is None
    assert json.dumps(sorted(captured.initial_values))  # names
