"""Whose rows can be requested one step in advance, and why others cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.capture import capture
from tests import keras_updates
from tests.single.small_models import FEATURES, OPTIMIZERS, ROWS, WIDTH, Features, captured, clip, infos

ANY_ROW = "may write rows that a step does not touch"


def table_of(name: str = "table") -> tf.Variable:
    return tf.get_variable(name, [ROWS, WIDTH], tf.float64)


def reason(lookup: Callable[[Features], tf.Tensor], process: Callable[[list[Any]], list[Any]] = list) -> str | None:
    """Of «table», of which the model looks up rows [BATCH, WIDTH]."""

    def model(features: Features) -> tf.Tensor:
        return tf.reduce_sum(lookup(features) * features["x"], axis=1)

    return infos(captured(model, process=process))["table"].unknown_ahead


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ids_of_the_batch_are_known_unless_the_optimizer_moves_other_rows(optimizer: str) -> None:
    found = infos(captured(optimizer=optimizer))["table"].unknown_ahead
    assert found is None if optimizer != "adam" else found is not None and ANY_ROW in found


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_updates_as_keras_writes_them(optimizer: str) -> None:
    def build(features: Features) -> dict[str, Any]:
        looked_up = tf.nn.embedding_lookup(table_of(), features["ids"])
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(looked_up * features["x"], axis=1) - features["y"]))
        pairs = tf.train.GradientDescentOptimizer(0.1).compute_gradients(loss)
        step = tf.train.get_or_create_global_step()
        return {"loss": loss, "train_op": keras_updates.Optimizer(optimizer).apply_gradients(pairs, step)}

    found = infos(capture(build, FEATURES, seed=1))["table"].unknown_ahead
    # Keras divides by what may be zero, in a branch whose ids are no longer the gradient's own.
    assert found is None if optimizer == "sgd" else found is not None and ANY_ROW in found


def test_draws_and_what_is_computed_of_the_batch_are_known() -> None:
    def of_batch(features: Features) -> tf.Tensor:
        return tf.nn.embedding_lookup(table_of(), (tf.reshape(features["ids"], [-1]) * 2 + 1) % ROWS)

    def drawn(features: Features) -> tf.Tensor:
        classes = tf.cast(features["ids"][:, tf.newaxis], tf.int64)
        ids, _, _ = tf.random.uniform_candidate_sampler(classes, 1, num_sampled=4, unique=True, range_max=ROWS)
        return tf.gather(table_of(), ids)

    def in_a_static_table(features: Features) -> tf.Tensor:
        keys = tf.range(ROWS, dtype=tf.int32)
        numbers = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys), 0)
        return tf.nn.embedding_lookup(table_of(), numbers.lookup(features["ids"]))

    assert reason(of_batch) is None
    assert reason(in_a_static_table) is None
    assert reason(drawn) is None
    assert reason(of_batch, clip) is None  # a norm over all rows changes what is written, not where


def test_ids_that_only_the_step_can_tell() -> None:
    def by_variable(features: Features) -> tf.Tensor:
        offset = tf.get_variable("offset", [], tf.int32, tf.zeros_initializer(), trainable=False)
        return tf.nn.embedding_lookup(table_of(), (features["ids"] + offset.read_value()) % ROWS)

    def by_python(features: Features) -> tf.Tensor:
        ids = tf.numpy_function(np.sort, [features["ids"]], tf.int32)
        return tf.nn.embedding_lookup(table_of(), tf.reshape(ids, features["ids"].shape))

    def behind_a_write(features: Features) -> tf.Tensor:
        table = table_of()
        with tf.control_dependencies([tf.get_variable("seen", [], tf.float64, trainable=False).assign_add(1.0)]):
            return tf.gather(table, features["ids"])

    for lookup in (by_variable, by_python):
        assert "the ids of the lookup «" in (reason(lookup) or "")
    assert "waits for" in (reason(behind_a_write) or "")


def test_a_gradient_whose_ids_are_not_those_of_a_lookup() -> None:
    def others(gradients: list[Any]) -> list[Any]:
        return [tf.IndexedSlices(one.values, (one.indices + 1) % ROWS, one.dense_shape) for one in gradients]

    def lookup(features: Features) -> tf.Tensor:
        return tf.nn.embedding_lookup(table_of(), features["ids"])

    assert ANY_ROW in (reason(lookup, others) or "")
