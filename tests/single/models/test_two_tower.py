"""The two towers in plain Keras: they learn, and the loss is the corrected softmax over the items of the batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import two_tower
from parallax_runner.data import pairs

BATCH = 128
DATA = {
    **{"queries": 300, "items": 200, "clusters": 10, "affinity": 0.9},
    **{"examples": 100_000, "validation_examples": BATCH, "seed": 1},
}
SIZES = {"queries": 300, "items": 200, "embedding_size": 16, "units": [16, 8], "temperature": 0.2}


@pytest.fixture
def model():
    keras.utils.set_random_seed(1)
    return two_tower.make_model(**SIZES, learning_rate=0.1)


def test_loss_falls_and_items_of_the_querys_cluster_are_near(model):
    dataset = pairs.load(**DATA)
    held_out = dataset.validation_batch(0, BATCH)
    before = model.test_on_batch(held_out)
    for step in range(30):
        model.train_on_batch(dataset.train_batch(step * BATCH, BATCH))
    model.reset_metrics()
    assert model.test_on_batch(held_out) < before - 0.5
    queries, items = model.predict_on_batch(held_out)
    scores = queries @ items.T
    is_pair = np.eye(BATCH, dtype=bool)
    assert scores[is_pair].mean() > scores[~is_pair].mean() + 0.1


def test_vectors_and_variables(model):
    queries, items = model.predict_on_batch(pairs.load(**DATA).train_batch(0, 7))
    assert queries.shape == items.shape == (7, 8)
    for vectors in (queries, items):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    shapes = {variable.path: variable.shape for variable in model.trainable_variables}
    assert shapes["two_tower/query_tower/query_embedding/embeddings"] == (300, 16)
    assert shapes["two_tower/item_tower/item_embedding/embeddings"] == (200, 16)
    assert shapes["two_tower/item_tower/item_1/kernel"] == (16, 8)


def test_loss_is_that_of_numpy_and_the_same_item_is_no_negative(model):
    batch = pairs.load(**DATA).train_batch(0, 20)
    batch["item"][3] = batch["item"][5]  # a batch has the same item more than once
    batch["item_probability"][3] = batch["item_probability"][5]
    queries, items = model.predict_on_batch(batch)
    logits = (queries @ items.T).astype(np.float64) / 0.2 - np.log(batch["item_probability"])
    losses = []
    for number in range(20):
        others = [one for one in range(20) if batch["item"][one] != batch["item"][number]]
        kept = logits[number, [number, *others]]
        losses.append(np.log(np.exp(kept).sum()) - kept[0])
    assert len(others) < 19
    assert model.test_on_batch(batch) == pytest.approx(np.mean(losses), rel=1e-5)


def test_each_batch_has_negatives_of_its_own(model):
    """With two ranks the loss is the mean of two batches; that of one batch of all pairs is larger."""
    batch = pairs.load(**DATA).train_batch(0, 64)

    def loss(rows):
        model.reset_metrics()
        return model.test_on_batch({name: array[rows] for name, array in batch.items()})

    halves = [loss(slice(0, 32)), loss(slice(32, 64))]
    assert loss(slice(0, 64)) > np.mean(halves) + 0.3


def test_tables_have_sparse_gradients(model):
    batch = pairs.load(**DATA).train_batch(0, 16)
    with tf.GradientTape() as tape:
        loss = model.compute_loss(batch, y_pred=model(batch, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    sparse = {
        variable.path.split("/")[-2]
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True)
        if isinstance(gradient, tf.IndexedSlices)
    }
    assert sparse == {"query_embedding", "item_embedding"}
