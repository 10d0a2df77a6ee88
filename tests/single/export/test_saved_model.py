"""A SavedModel gives what the checkpoint's graph gives, needs plain TensorFlow only, and has nothing of training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import saved_model_pb2

from parallax_runner.errors import ExportError
from parallax_runner.export.inference import inference_graph
from parallax_runner.export.saved_model import export_saved_model
from tests.single.export.serving import BATCH, DATASET, ROWS, WIDTH, Features, built, exported, served, train, trained


def lookup(features: Features, *, pieces: int = 1, use_resource: bool = True) -> dict[str, Any]:
    """A lookup times a dense vector; serving needs «ids» alone. A third variable is only trained."""
    partitioner = tf.fixed_size_partitioner(pieces) if pieces > 1 else None
    table = tf.get_variable("table", [ROWS, WIDTH], partitioner=partitioner, use_resource=use_resource)
    weights = tf.get_variable("weights", [WIDTH], use_resource=use_resource)
    score = tf.reduce_sum(tf.nn.embedding_lookup(table, features["ids"]) * weights, axis=1)
    offset = tf.get_variable("offset", [], use_resource=use_resource)
    loss = tf.reduce_mean(tf.square(score + offset - features["y"]))
    return {"loss": loss, "train_op": train(loss), "validation_loss": loss, "outputs": {"score": score}}


def static(features: Features) -> dict[str, Any]:
    """Needs to know the batch size when it is built."""
    rows = int(features["x"].shape[0])
    weights = tf.get_variable("weights", [WIDTH])
    flat = tf.reshape(features["x"], [rows * WIDTH])
    y = tf.reduce_sum(tf.reshape(flat, [rows, WIDTH]) * weights, axis=1)
    loss = tf.reduce_mean(tf.square(y - features["y"]))
    return {"loss": loss, "train_op": train(loss), "outputs": {"y": y}}


def hidden_static(features: Features) -> dict[str, Any]:
    """Fails with another batch size only when it runs."""
    weights = tf.get_variable("weights", [WIDTH])
    y = tf.reduce_sum(features["x"] * weights, axis=1) + tf.constant(np.arange(BATCH), tf.float32)
    loss = tf.reduce_mean(tf.square(y - features["y"]))
    return {"loss": loss, "train_op": train(loss), "outputs": {"y": y}}


def keras_layers(features: Features) -> dict[str, Any]:
    """Layers without names of their own: Keras numbers them."""
    hidden = tf2.keras.layers.Dense(5, activation="tanh")(features["x"])
    y = tf2.keras.layers.Dense(1)(hidden)[:, 0]
    loss = tf.reduce_mean(tf.square(y - features["y"]))
    return {"loss": loss, "train_op": train(loss), "outputs": {"y": y}}


def recurrent(features: Features) -> dict[str, Any]:
    """A while loop, and functions within it."""
    steps = tf.unstack(features["x"], axis=1)
    cell = tf.get_variable("cell", [])
    _, state = tf.while_loop(
        lambda step, _: step < WIDTH,
        lambda step, state: (step + 1, tf.tanh(state * cell + tf.gather(tf.stack(steps), step))),
        [tf.constant(0), tf.zeros_like(steps[0])],
    )
    loss = tf.reduce_mean(tf.square(state - features["y"]))
    return {"loss": loss, "train_op": train(loss), "outputs": {"state": state}}


def description_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "assets.extra" / "serving.json").read_text())


def graph_of(folder: Path) -> tf.GraphDef:
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    (meta_graph,) = saved.meta_graphs
    return meta_graph.graph_def


def test_outputs_are_those_of_the_checkpoint_for_batches_of_any_size(tmp_path: Path) -> None:
    folder, expected = exported(lookup, tmp_path)
    ids = DATASET.validation_batch(0, BATCH)["ids"]
    np.testing.assert_array_equal(served(folder, ids=ids)["score"], expected["score"])
    np.testing.assert_array_equal(served(folder, ids=ids[:1])["score"], expected["score"][:1])
    np.testing.assert_array_equal(served(folder, ids=np.tile(ids, 3))["score"], np.tile(expected["score"], 3))


def test_the_description_says_what_serving_needs(tmp_path: Path) -> None:
    folder, _ = exported(lookup, tmp_path)
    described = description_of(folder)
    assert described["checkpoint"] == "model.ckpt-3"
    assert described["inputs"] == {"ids": {"dtype": "int32", "shape": [-1]}}
    assert described["outputs"] == {"score": {"dtype": "float32", "shape": [-1]}}
    assert described["example"] == {"ids": DATASET.validation_batch(0, 2)["ids"].tolist()}
    assert described["note"] is None


def test_nothing_of_training_is_left(tmp_path: Path) -> None:
    folder, _ = exported(lookup, tmp_path)
    stored = dict(tf.train.list_variables(str(folder / "variables" / "variables")))
    assert stored == {"table": [ROWS, WIDTH], "weights": [WIDTH]}
    graph = graph_of(folder)
    names = {node.name for node in graph.node}
    assert {"table", "weights"} <= names
    assert not [name for name in names if "gradients" in name or "Adam" in name or "offset" in name]
    operations = {node.op for node in graph.node}
    unwanted = ("Apply", "Scatter", "Horovod", "Parallax")
    assert not [op for op in operations if any(word in op for word in unwanted)]
    assert not graph.library.function
    assert {node.device for node in graph.node} <= {"", "/device:CPU:0"}  # the latter: TensorFlow's own saving


@pytest.mark.parametrize("use_resource", [True, False])
def test_the_pieces_of_the_users_partitioner_are_one_variable_again(tmp_path: Path, use_resource: bool) -> None:
    folder, expected = exported(lambda features: lookup(features, pieces=3, use_resource=use_resource), tmp_path)
    stored = dict(tf.train.list_variables(str(folder / "variables" / "variables")))
    assert stored == {"table": [ROWS, WIDTH], "weights": [WIDTH]}
    ids = DATASET.validation_batch(0, BATCH)["ids"]
    np.testing.assert_array_equal(served(folder, ids=ids)["score"], expected["score"])


@pytest.mark.parametrize("model", [static, hidden_static])
def test_a_model_of_one_batch_size_is_served_with_it(tmp_path: Path, model: Any) -> None:
    folder, expected = exported(model, tmp_path)
    described = description_of(folder)
    assert described["inputs"] == {"x": {"dtype": "float32", "shape": [BATCH, WIDTH]}}
    assert len(described["example"]["x"]) == BATCH
    assert f"only batches of {BATCH} examples" in described["note"]
    np.testing.assert_array_equal(served(folder, x=DATASET.validation_batch(0, BATCH)["x"])["y"], expected["y"])


def test_keras_layers_have_the_names_of_the_checkpoint(tmp_path: Path) -> None:
    folder, expected = exported(keras_layers, tmp_path)
    described = description_of(folder)
    assert described["note"] is None
    x = DATASET.validation_batch(0, BATCH)["x"]
    np.testing.assert_allclose(served(folder, x=x)["y"], expected["y"], rtol=1e-6)


def test_loops_are_served(tmp_path: Path) -> None:
    folder, expected = exported(recurrent, tmp_path)
    assert description_of(folder)["note"] is None
    x = DATASET.validation_batch(0, BATCH)["x"]
    np.testing.assert_allclose(served(folder, x=x)["state"], expected["state"], rtol=1e-6)


def test_a_model_without_outputs_serves_its_validation_loss(tmp_path: Path) -> None:
    def model(features: Features) -> dict[str, Any]:
        return {key: value for key, value in lookup(features).items() if key != "outputs"}

    folder, expected = exported(model, tmp_path)
    assert set(description_of(folder)["inputs"]) == {"ids", "y"}
    batch = DATASET.validation_batch(0, BATCH)
    got = served(folder, ids=batch["ids"], y=batch["y"])
    # As a row: that is what serves a model expects.
    assert got["validation_loss"].shape == (1,)
    np.testing.assert_allclose(got["validation_loss"][0], expected["validation_loss"], rtol=1e-6)


def test_a_model_that_is_built_differently_the_second_time_is_served_as_it_was_trained(tmp_path: Path) -> None:
    times = iter(range(9))

    def model(features: Features) -> dict[str, Any]:
        with tf.variable_scope(f"build_{next(times)}"):
            return lookup(features)

    folder, expected = exported(model, tmp_path)
    assert "different variables" in description_of(folder)["note"]
    ids = DATASET.validation_batch(0, BATCH)["ids"]
    np.testing.assert_array_equal(served(folder, ids=ids)["score"], expected["score"])


def test_a_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "old").touch()
    folder, _ = exported(lookup, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["assets.extra", "saved_model.pb", "variables"]
    assert {path.name for path in tmp_path.iterdir()} == {"ckpt", "saved_model"}


def test_a_folder_whose_name_is_a_pattern_is_served_elsewhere(tmp_path: Path) -> None:
    """TensorFlow itself finds no variables there, so a server gets a copy."""
    single = built(lookup)
    prefix, expected = trained(single, tmp_path / "ckpt", single.outputs)
    odd = tmp_path / "a[b]\\c"
    prefix.parent.rename(odd)
    folder = odd / "saved_model"
    export_saved_model(single, lambda: built(lookup, None), DATASET, prefix=odd / prefix.name, folder=folder)
    ids = DATASET.validation_batch(0, BATCH)["ids"]
    np.testing.assert_array_equal(
        served(odd.rename(tmp_path / "plain") / "saved_model", ids=ids)["score"], expected["score"]
    )


def test_an_output_that_changes_a_variable_is_refused() -> None:
    def model(features: Features) -> dict[str, Any]:
        returned = lookup(features)
        with tf.control_dependencies([returned["train_op"]]):
            return returned | {"outputs": {"score": tf.identity(returned["outputs"]["score"])}}

    with pytest.raises(ExportError, match="changes a variable"):
        inference_graph(built(model))


def test_an_output_that_depends_on_nothing_is_refused() -> None:
    with pytest.raises(ExportError, match="no feature"):
        inference_graph(built(lambda features: lookup(features) | {"outputs": {"one": tf.constant(1.0)}}))


def test_an_output_of_what_no_checkpoint_holds_is_refused() -> None:
    def model(features: Features) -> dict[str, Any]:
        seen = tf.get_variable("seen", [], trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
        return lookup(features) | {"outputs": {"sum": seen + features["y"]}}

    with pytest.raises(ExportError, match="«seen», which no checkpoint contains"):
        inference_graph(built(model))


def test_a_checkpoint_that_does_not_fit_is_an_error_that_names_it(tmp_path: Path) -> None:
    single = built(lookup)
    prefix, _ = trained(built(static), tmp_path / "ckpt", {})
    with pytest.raises(ExportError, match=r"model\.ckpt-3"):
        export_saved_model(single, lambda: built(lookup, None), DATASET, prefix=prefix, folder=tmp_path / "saved_model")
    assert not (tmp_path / "saved_model").exists()
