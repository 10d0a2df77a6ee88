"""A Keras model, and a training step, with a ragged and a sparse feature: captured, trained by ranks, and served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.config.frozen import from_plain
from parallax_runner.errors import ConfigError
from parallax_runner.export.saved_model import export_saved_model
from parallax_runner.graph.build import build_graph
from parallax_runner.graph.components import type_spec
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.tf_data.tf_dataset import TfDataset
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.train.feed import Feed
from parallax_runner.verify.reference import Reference

BATCH, ROWS, WIDTH = 4, 60, 6
COMPONENTS = ["tags/dense_shape", "tags/indices", "tags/values", "words/row_splits", "words/values", "y"]


def dataset() -> Any:
    """Twelve examples, no word twice."""
    draws = np.random.default_rng(3)
    words = tf.RaggedTensor.from_row_lengths(draws.permutation(ROWS)[:30].astype("int32"), [1, 4, 2, 3] * 3)
    tags = tf.sparse.from_dense((draws.normal(size=(12, WIDTH)) * (draws.random((12, WIDTH)) < 0.4)).astype("float32"))
    features = {"words": words, "tags": tags, "y": draws.normal(size=(12, 1)).astype("float32")}
    return tf.data.Dataset.from_tensor_slices(features).batch(BATCH)


def model() -> Any:
    """A table and two dense layers, one of them on sparse rows."""
    keras.utils.set_random_seed(2)
    words = keras.Input([None], dtype="int32", ragged=True, name="words")
    tags = keras.Input([WIDTH], sparse=True, name="tags")
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(ROWS, 3, name="table")(words))
    joined = keras.layers.Concatenate()([pooled, keras.layers.Dense(2, name="tagged")(tags)])
    made = keras.Model({"words": words, "tags": tags}, keras.layers.Dense(1, name="top")(joined))
    made.compile(keras.optimizers.Adagrad(0.1), "mse")
    return made


def captured(make: Any, batch_size: int | None = BATCH // 2, **options: Any) -> SingleDeviceGraph:
    features = {name: type_spec(feature, batch_size) for name, feature in TfDataset.of(dataset()).features.items()}
    return capture_step(make, features, seed=7, options=options)


def test_two_ranks_train_as_plain_keras_does() -> None:
    keras.utils.clear_session()  # otherwise, the optimizer's name may contain a number
    plain = model()
    single = captured(model, labels="y")
    assert sorted(single.features) == sorted(single.validation_features or ()) == COMPONENTS
    feeds = [Feed(TfDataset.of(dataset()), BATCH // 2, rank, 2) for rank in range(2)]
    with Reference(single, ranks=2, average_sparse=True) as reference:
        reference.initialize()
        reference.load(reference.values() | {one.path: one.numpy() for one in plain.variables})
        for step, batch in enumerate(dataset()):
            losses = reference.step([feed.train_batches(step * BATCH)[0] for feed in feeds])
            plain.reset_metrics()
            expected = plain.train_on_batch({name: batch[name] for name in ("words", "tags")}, batch["y"])
            np.testing.assert_allclose(np.mean(losses), expected, rtol=1e-5)
        values = reference.values()
    for one in (*plain.variables, *plain.optimizer.variables):
        np.testing.assert_allclose(values[one.path], one.numpy(), rtol=2e-5, atol=1e-7, err_msg=one.path)


def test_a_table_is_looked_up_by_rows() -> None:
    gradients = {one.variable: one.indices is not None for one in captured(model, labels="y").gradients}
    assert gradients["table/embeddings"]


def test_a_training_step_is_given_ragged_and_sparse_tensors() -> None:
    def make() -> Any:
        table = tf.Variable(tf.ones([ROWS]), name="table")

        @tf.function
        def step(batch: dict[str, Any]) -> Any:
            assert isinstance(batch["tags"], tf.SparseTensor) and batch["tags"].shape[1] == WIDTH
            with tf.GradientTape() as tape:
                found = tf.ragged.map_flat_values(lambda ids: tf.nn.embedding_lookup(table, ids), batch["words"])
                loss = tf.reduce_mean(tf.reduce_sum(found, axis=1)) + tf.reduce_sum(batch["tags"].values)
            slopes = tape.gradient(loss, table)
            table.scatter_sub(tf.IndexedSlices(slopes.values, slopes.indices))
            return loss

        return step

    single = captured(make)
    feed = Feed(TfDataset.of(dataset()), BATCH // 2, 0, 2)
    (batch,) = feed.train_batches(0)
    with Reference(single, ranks=1, average_sparse=True) as reference:
        reference.initialize()
        (loss,) = reference.step([{name: batch[name] for name in single.features}])
        values = reference.values()["table"]
    assert loss == pytest.approx(len(batch["words/values"]) / 2 + batch["tags/values"].sum(), rel=1e-5)
    np.testing.assert_allclose(values[batch["words/values"]], 0.5)
    assert (values == 1).sum() == ROWS - len(batch["words/values"])


def test_it_is_served_by_components(tmp_path: Path) -> None:
    plain, single = model(), captured(model, labels="y")
    values = {one.path: one.numpy() for one in (*plain.variables, *plain.optimizer.variables)}
    prefix = tmp_path / "model.ckpt-3"
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=[tf.constant(value) for value in values.values()],
    )
    data = TfDataset.of(dataset(), dataset())
    folder = export_saved_model(
        single, lambda: captured(model, None, labels="y"), data, prefix=prefix, folder=tmp_path / "saved_model"
    )
    arrays = data.train_batch(0, 3)
    signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
    inputs = {name: tf.constant(array) for name, array in arrays.items() if name != "y"}
    (batch,) = dataset().take(1)
    expected = plain({name: batch[name] for name in ("words", "tags")})[:3]
    np.testing.assert_allclose(signature(**inputs)["output"], expected, rtol=1e-5)


def test_a_graph_of_tensorflow_1_is_refused() -> None:
    config = {
        "model": {"_target_": "models.simple.build"},
        "data": {"batch_size": 2},
        "train": {"seed": 1},
        "cluster": {"workers": 2, "replicas_per_worker": 1},
        "run_dir": "unused",
    }
    with pytest.raises(ConfigError, match=r"which must be dense, but «words» is ragged"):
        build_graph(from_plain(config), TfDataset.of(dataset()))
