"""The DLRM in plain Keras: it learns, its parts compute what they say, and it traces without lookup tables."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import dlrm_keras
from parallax_runner.data import clicks

BATCH = 256
DATA = {"dense_features": 13, "cardinalities": [1000, 40, 7], "examples": 100_000, "validation_examples": 1024}
SIZES = {
    **{"dense_features": 13, "cardinalities": [1000, 40, 7], "max_rows": 100},
    **{"embedding_size": 4, "bottom_units": [16], "top_units": [16, 8]},
}


@pytest.fixture
def model():
    keras.utils.set_random_seed(1)
    return dlrm_keras.make_model(**SIZES, learning_rate=0.1)


def test_loss_falls(model):
    dataset = clicks.load(**DATA, seed=1)
    held_out = dataset.validation_batch(0, 1024)
    labels = held_out.pop("label")
    before = model.test_on_batch(held_out, labels, return_dict=True)["loss"]
    for step in range(30):
        batch = dataset.train_batch(step * BATCH, BATCH)
        model.train_on_batch({name: batch[name] for name in ("dense", "categorical")}, batch["label"])
    model.reset_metrics()
    rate = labels.mean()
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    after = model.test_on_batch(held_out, labels, return_dict=True)["loss"]
    assert after < entropy - 0.01 < before - 0.05  # more is learned than the mean


def test_inputs_variables_and_output(model):
    assert {name: (one.shape, one.dtype) for name, one in model.input.items()} == {
        "dense": ((None, 13), "float32"),
        "categorical": ((None, 3), "int64"),
    }
    assert model.output.shape == (None, 1)
    shapes = {variable.path: variable.shape for variable in model.trainable_variables}
    assert [shapes[f"embedding_{feature}/embeddings"] for feature in range(3)] == [(100, 4), (40, 4), (7, 4)]
    assert shapes["bottom_1/kernel"] == (16, 4)
    assert shapes["top_0/kernel"] == (4 + 4 * 3 // 2, 16)  # the dense vector, and pairs of four vectors
    assert shapes["logit/kernel"] == (8, 1)
    assert not model.non_trainable_variables


def test_logits_and_loss_are_those_of_numpy(model):
    batch = clicks.load(**DATA, seed=1).train_batch(0, 20)
    values = {variable.path: variable.numpy() for variable in model.variables}

    def dense(flow, name, *, is_last=False):
        flow = flow @ values[f"{name}/kernel"] + values[f"{name}/bias"]
        return flow if is_last else np.maximum(flow, 0)

    ids = batch["categorical"].copy()
    ids[:, 0] = model.get_layer("embedding_0_hash")(ids[:, 0])
    assert ids[:, 0].max() < 100
    bottom = dense(dense(batch["dense"], "bottom_0"), "bottom_1")
    vectors = np.stack(
        [bottom, *(values[f"embedding_{feature}/embeddings"][ids[:, feature]] for feature in range(3))], 1
    )
    pairs = [(vectors[:, row] * vectors[:, column]).sum(axis=1) for row in range(4) for column in range(row)]
    features = np.concatenate([bottom, np.stack(pairs, axis=1)], axis=1)
    logits = dense(dense(dense(features, "top_0"), "top_1"), "logit", is_last=True)[:, 0]
    labels = batch.pop("label")
    np.testing.assert_allclose(model.predict_on_batch(batch)[:, 0], logits, atol=1e-5)
    expected = np.mean(np.log1p(np.exp(logits)) - labels * logits)
    assert model.test_on_batch(batch, labels, return_dict=True)["loss"] == pytest.approx(expected, rel=1e-5)


def test_large_features_are_hashed_and_small_ones_are_not(model):
    hashes = [layer for layer in model.layers if isinstance(layer, keras.layers.Hashing)]
    assert [layer.name for layer in hashes] == ["embedding_0_hash"]
    rows = np.asarray(hashes[0](np.arange(1000)))
    assert (rows.min(), rows.max()) == (0, 99) and len(set(rows.tolist())) == 100


def test_the_step_traces_without_lookup_tables_and_its_tables_have_sparse_gradients(model):
    batch = clicks.load(**DATA, seed=1).train_batch(0, BATCH)
    labels = batch.pop("label")
    sparse = []

    @tf.function
    def step(features, labels):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(features, labels, model(features, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                sparse.append(variable.path)
        return loss

    types = {op.type for op in step.get_concrete_function(batch, labels).graph.get_operations()}
    assert "StringToHashBucketFast" in types
    assert not [one for one in types if "Table" in one]
    assert sorted(sparse) == [f"embedding_{feature}/embeddings" for feature in range(3)]


def test_the_optimizer_is_a_name_of_keras():
    model = dlrm_keras.make_model(**SIZES, optimizer="sgd", learning_rate=0.5)
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert float(model.optimizer.learning_rate) == 0.5
