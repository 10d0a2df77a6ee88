"""The layer whose vocabulary grows, in plain Keras on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner import layers
from parallax_runner.errors import ConfigError
from parallax_runner.layers import GrowingEmbedding, growing_lookup
from tests.growing_keys import initial_row, keys_of_bucket

KEYS = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, size=(64, 3))
LABELS = np.ones([64, 1], np.float32)


def model(**arguments: Any) -> keras.Model:
    given = keras.Input([3], dtype="int64")
    table = GrowingEmbedding(4, **{"capacity": 8192, "seed": 9, "name": "table", **arguments})
    made = keras.Model(given, keras.layers.Dense(1)(keras.layers.Flatten()(table(given))))
    made.compile("adagrad", "mse")
    return made


def map_of(made: keras.Model) -> list[np.ndarray]:
    table = made.get_layer("table")
    return [np.array(one.numpy()) for one in (table.keys, table.index, table.fill, table.overflowed)]


def test_training_inserts_and_validation_does_not() -> None:
    made = model()
    made.fit(KEYS[:48], LABELS[:48], batch_size=16, epochs=2, verbose=0, validation_data=(KEYS[48:], LABELS[48:]))
    before = map_of(made)
    assert before[2].sum() == len(np.unique(KEYS[:48]))
    made.evaluate(KEYS[48:], LABELS[48:], verbose=0)
    made.predict(KEYS, verbose=0)
    made(KEYS[48:])
    assert all((one == other).all() for one, other in zip(before, map_of(made), strict=True))


def test_finds_an_insert_in_validation() -> None:
    def inserting(handles: Any, keys: Any, shape: Any) -> Any:
        return layers.rows_with_inserts(handles, keys, shape).rows

    with mock.patch.object(layers, "rows_of_known", inserting), pytest.raises(AssertionError):
        test_training_inserts_and_validation_does_not()


def test_an_unknown_key_has_the_row_that_training_would_begin_with() -> None:
    table = GrowingEmbedding(4, 8192, seed=9, scale=0.5)
    unknown = table(KEYS).numpy()
    np.testing.assert_array_equal(unknown[5, 1], initial_row(int(KEYS[5, 1]), seed=9, columns=4, scale=0.5))
    np.testing.assert_array_equal(table(KEYS, training=True).numpy(), unknown)
    np.testing.assert_array_equal(table(KEYS).numpy(), unknown)


def test_only_rows_of_the_batch_change() -> None:
    table, optimizer = GrowingEmbedding(2, 8192, seed=1), keras.optimizers.SGD(1.0)
    table(KEYS, training=True)
    before = table(KEYS).numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table(KEYS[:2], training=True))
    (gradient,) = tape.gradient(loss, table.trainable_variables)
    assert isinstance(gradient, tf.IndexedSlices)
    optimizer.apply([gradient], table.trainable_variables)
    after = table(KEYS).numpy()
    np.testing.assert_allclose(after[:2], before[:2] - 1, rtol=1e-5)
    np.testing.assert_array_equal(after[2:], before[2:])


def test_keys_that_overflow_are_trained_and_predicted_by_the_shared_row() -> None:
    made = model(capacity=1024, overflow="shared")
    keys = np.array(keys_of_bucket(4, 3)).reshape(1, 3)
    made.fit(keys, LABELS[:1], verbose=0)
    table = made.get_layer("table")
    rows, shared = table.rows.numpy(), table.rows.numpy()[1024 + 4]
    assert shared.any()
    np.testing.assert_array_equal(table(keys).numpy()[0], [rows[4], shared, shared])
    assert table.overflowed.numpy()[4] == 2


def test_a_full_bucket_fails() -> None:
    made = model(capacity=1024)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the vocabulary is full"):
        made.fit(np.array(keys_of_bucket(4, 3)).reshape(1, 3), LABELS[:1], verbose=0)
    assert not any(one.any() for one in map_of(made))


def test_saved_and_loaded(tmp_path: Path) -> None:
    made = model()
    made.fit(KEYS, LABELS, verbose=0)
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert all((one == other).all() for one, other in zip(map_of(made), map_of(loaded), strict=True))
    np.testing.assert_array_equal(loaded.predict(KEYS + 1, verbose=0), made.predict(KEYS + 1, verbose=0))
    made.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(KEYS), made.predict(KEYS, verbose=0), rtol=1e-5)


def test_computes_in_the_dtype_of_its_policy() -> None:
    table = GrowingEmbedding(4, 1024, dtype="mixed_bfloat16")
    assert table(KEYS[:1]).dtype == tf.bfloat16
    assert table.rows.dtype == "float32"
    assert GrowingEmbedding(4, 1024)(KEYS[:1, 0]).shape == (1, 4)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"dim": 0, "capacity": 1024}, "dim=0, expected at least 1"),
        ({"dim": 2, "capacity": 1023}, "capacity=1023, expected at least 1024"),
        ({"dim": 2, "capacity": 1024, "overflow": "drop"}, "overflow='drop', expected one of error, shared"),
        ({"dim": 2, "capacity": 1024, "scale": float("nan")}, "scale=nan, expected at least 0"),
    ],
)
def test_refuses_arguments(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        GrowingEmbedding(**arguments)


@pytest.mark.parametrize("dtype", ["float32", "uint64"])
def test_refuses_inputs_that_are_no_keys(dtype: str) -> None:
    with pytest.raises(ValueError, match=f"inputs of dtype {dtype}, expected int64 keys"):
        GrowingEmbedding(2, 1024, name="table")(np.zeros([2], dtype))


def test_short_integers_are_keys() -> None:
    table = GrowingEmbedding(2, 1024, seed=1)
    keys = np.array([-3, 5], np.int32)
    np.testing.assert_array_equal(table(keys).numpy(), table(keys.astype(np.int64)).numpy())


def test_calls_in_a_graph_share_a_table_by_its_name() -> None:
    v1 = tf.compat.v1
    table = {"name": "table", "dim": 2, "capacity": 2048, "seed": 4}
    for _ in range(2):
        with v1.Graph().as_default(), v1.Session() as session:
            keys = v1.placeholder(tf.int64, [None])
            trained = growing_lookup(keys, **table, training=True)
            served = growing_lookup(keys, **table, training=False)
            names = [variable.name for variable in v1.global_variables()]
            assert names == [f"table/{name}:0" for name in ("rows", "keys", "index", "fill", "overflow")]
            session.run(v1.global_variables_initializer())
            before = session.run(served, {keys: [7, 8]})
            np.testing.assert_array_equal(session.run(trained, {keys: [7]}), before[:1])
            np.testing.assert_array_equal(session.run(served, {keys: [7, 8]}), before)
            with pytest.raises(ConfigError, match="dim=3, but the table «table» has dim=2"):
                growing_lookup(keys, **table | {"dim": 3}, training=True)
