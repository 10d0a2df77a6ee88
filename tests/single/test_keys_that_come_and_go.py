"""The layer that admits and evicts keys, in plain Keras on one device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.errors import ConfigError
from parallax_runner.graph.growing.slots import keras_slots, keras_slots_begin_at, session_slots
from parallax_runner.layers import GrowingEmbedding, growing_lookup
from tests.growing_keys import initial_row, keys_of_bucket
from tests.parallel.keras_optimizers import OPTIMIZERS

FIRST, SECOND = keys_of_bucket(4, 2)
(OTHER,) = keys_of_bucket(9, 1)
(ELSEWHERE,) = keys_of_bucket(30, 1)


def model(optimizer: Any, **arguments: Any) -> keras.Model:
    """Returns a model that looks up two keys of an example."""
    given = keras.Input([2], dtype="int64")
    table = GrowingEmbedding(3, 1024, name="table", **{"seed": 9, **arguments})
    head = keras.layers.Dense(1, kernel_initializer="ones")
    made = keras.Model(given, head(keras.layers.GlobalAveragePooling1D()(table(given))))
    made.compile(optimizer, "mse")
    table.set_optimizer(made.optimizer)
    made.optimizer.build(made.trainable_variables)
    return made


def train(made: keras.Model, *keys: int) -> None:
    """Trains a step on one example for each pair of keys."""
    pairs = np.array(keys, np.int64).reshape(-1, 2)
    made.train_on_batch(pairs, np.ones([len(pairs), 1], np.float32))


def test_a_key_that_waits_has_its_initial_row_and_is_not_trained() -> None:
    made = model(keras.optimizers.SGD(0.5, momentum=0.9), admit={"min_count": 3}, scale=0.5)
    table = made.get_layer("table")
    initial = initial_row(FIRST, seed=9, columns=3, scale=0.5)
    train(made, FIRST, OTHER)
    assert not np.abs(table.rows.numpy()).any()
    np.testing.assert_array_equal(table(np.array([FIRST])).numpy()[0], initial)
    assert table.fill.numpy().sum() == 0
    train(made, FIRST, FIRST)
    assert table.fill.numpy().sum() == 1
    assert (table(np.array([FIRST])).numpy()[0] != initial).all()
    np.testing.assert_array_equal(table(np.array([OTHER])).numpy()[0], initial_row(OTHER, seed=9, columns=3, scale=0.5))


def test_no_row_is_updated_for_a_key_that_waits() -> None:
    """Not even by a gradient of zero, for which an optimizer with momentum would move a row."""
    table = GrowingEmbedding(3, 1024, seed=9, admit={"min_count": 2})
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table(np.array([FIRST, OTHER, FIRST]), training=True))
    (gradient,) = tape.gradient(loss, table.trainable_variables)
    assert gradient.indices.numpy().tolist() == [4, 4]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table(np.array([FIRST, ELSEWHERE])))
    (gradient,) = tape.gradient(loss, table.trainable_variables)
    assert gradient.indices.numpy().tolist() == [4]


def check_that_slots_start_afresh(optimizer: str) -> None:
    """A key that gets the row of an evicted key is trained like one that gets a row for the first time."""
    made = model(OPTIMIZERS[optimizer](), scale=0.0, evict={"unused_steps": 2, "every_steps": 1})
    for _ in range(3):
        train(made, FIRST, FIRST)
    for _ in range(3):
        train(made, OTHER, OTHER)
    table = made.get_layer("table")
    assert table.fill.numpy().sum() == 1
    train(made, SECOND, ELSEWHERE)
    assert table.keys.numpy()[4, 0] == SECOND
    rows = table.rows.numpy()
    np.testing.assert_array_equal(rows[4], rows[30])
    slots = keras_slots(made.optimizer, table.rows, keras_slots_begin_at(made.optimizer))
    for slot in slots:
        values = slot.variable.numpy()
        np.testing.assert_array_equal(values[4], values[30], err_msg=slot.variable.name)


# With `loss_scale_factor`, Keras itself cannot apply sparse gradients.
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS.keys() - {"loss_scale_factor"}))
def test_slots_start_afresh_with_a_row(optimizer: str) -> None:
    check_that_slots_start_afresh(optimizer)


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "momentum"])
def test_finds_a_kept_slot(optimizer: str) -> None:
    with mock.patch.object(GrowingEmbedding, "_slots_of_rows", lambda _: []), pytest.raises(AssertionError):
        check_that_slots_start_afresh(optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_initial_values_of_slots(optimizer: str) -> None:
    """All variables with a row for each row are slots, and begin with the values that the layer writes."""
    table, other = (GrowingEmbedding(3, 1024, name=name) for name in ("table", "table_rows"))
    for one in (table, other):
        one.build(None)
    made = OPTIMIZERS[optimizer]()
    made.build([table.rows, other.rows])
    slots = keras_slots(made, table.rows, keras_slots_begin_at(made))
    names = {slot.variable.name.removesuffix(":0") for slot in slots}
    of_rows = {one.value.name.removesuffix(":0") for one in made.variables if one.shape == table.rows.shape}
    assert names == {name for name in of_rows if not re.search(r"table_rows_rows_", name)}
    assert 2 * len(names) == len(of_rows)
    for slot in slots:
        np.testing.assert_array_equal(slot.variable.numpy(), np.float32(slot.initial))


@pytest.mark.parametrize("optimizer", ["AdagradOptimizer", "AdamOptimizer", "MomentumOptimizer", "FtrlOptimizer"])
def test_initial_values_of_slots_of_a_session(optimizer: str) -> None:
    momentum = [0.9] if optimizer == "MomentumOptimizer" else []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        rows = tf.compat.v1.get_variable("rows", [2048, 3], use_resource=True)
        made = getattr(tf.compat.v1.train, optimizer)(0.1, *momentum)
        slots = session_slots(made, rows)
        made.minimize(tf.reduce_sum(tf.gather(rows, [1])))
        assert len(slots) == len(made.get_slot_names())
        session.run(tf.compat.v1.global_variables_initializer())
        for slot in slots:
            np.testing.assert_array_equal(session.run(slot.variable), np.float32(slot.initial))


def test_a_session_starts_slots_afresh() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        optimizer = tf.compat.v1.train.AdagradOptimizer(0.1)
        keys = tf.compat.v1.placeholder(tf.int64, [None])
        rules = {"evict": {"unused_steps": 1}, "scale": 0.0, "optimizer": optimizer}
        rows = growing_lookup(keys, name="table", dim=2, capacity=1024, training=True, **rules)
        train_op = optimizer.minimize(tf.reduce_sum(tf.square(rows - 1)))
        session.run(tf.compat.v1.global_variables_initializer())
        for step in ([FIRST], [OTHER], [SECOND, ELSEWHERE]):
            session.run(train_op, {keys: step})
        (accumulator,) = [one for one in tf.compat.v1.global_variables() if "Adagrad" in one.name]
        accumulated = session.run(accumulator)
    np.testing.assert_array_equal(accumulated[4], accumulated[30])
    assert (accumulated[4] > 0.1).all()


def test_validation_counts_nothing_and_admits_nobody() -> None:
    made = model("adagrad", admit={"min_count": 2}, evict={"unused_steps": 3, "every_steps": 1})
    table, x = made.get_layer("table"), np.array([[FIRST, OTHER]])
    train(made, FIRST, OTHER)
    before = [one.numpy() for one in table.map_variables]
    for _ in range(3):
        made.evaluate(x, np.ones([1, 1]), verbose=0)
        made.predict(x, verbose=0)
    assert all((one == other.numpy()).all() for one, other in zip(before, table.map_variables, strict=True))


def test_saved_and_loaded(tmp_path: Path) -> None:
    """The model goes on after the optimizer is set again."""
    made = model("adagrad", admit={"min_count": 2}, evict={"unused_steps": 3, "every_steps": 2})
    train(made, FIRST, OTHER)
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    with pytest.raises(ConfigError, match=r"«table» .*call set_optimizer\(model.optimizer\)"):
        train(loaded, FIRST, OTHER)
    loaded.get_layer("table").set_optimizer(loaded.optimizer)
    for one in (made, loaded):
        train(one, FIRST, OTHER)
    for one, other in zip(made.get_layer("table").weights, loaded.get_layer("table").weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert made.get_layer("table").fill.numpy().sum() == 2
    made.export(tmp_path / "served", verbose=False)
    x = np.array([[FIRST, ELSEWHERE]])
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(x), made.predict(x, verbose=0), rtol=1e-5)


class Own(keras.optimizers.SGD):
    """An optimizer whose slots begin with values that nobody knows."""


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="Own is none of Keras' own optimizers"):
        model(Own(0.1, momentum=0.9), evict={"unused_steps": 3})
    table = GrowingEmbedding(3, 1024, evict={"unused_steps": 3})
    optimizer = Own(0.1, momentum=0.9)
    table.set_optimizer(optimizer, initial={})
    with pytest.raises(ConfigError, match=r"call optimizer.build\(trainable_variables\)"):
        table(np.array([FIRST]), training=True)
    optimizer.build([table.rows])
    with pytest.raises(ConfigError, match="no value for the slot «momentum»"):
        table(np.array([FIRST]), training=True)
    table.set_optimizer(optimizer, initial={"momentum": 0.0})
    table(np.array([FIRST]), training=True)
    with tf.Graph().as_default(), pytest.raises(ConfigError, match="needs the argument optimizer"):
        growing_lookup([1], name="table", dim=2, capacity=1024, training=True, evict={"unused_steps": 1})


@pytest.mark.parametrize(
    "arguments",
    [
        {"admit": {"min_count": 0}},
        {"admit": {"count": 2}},
        {"admit": {"min_count": 2.5}},
        {"admit": 3},
        {"evict": {"every_steps": 2}},
        {"evict": {"unused_steps": True}},
        {"evict": {"unused_steps": 2, "every": 1}},
    ],
)
def test_wrong_rules_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(ConfigError, match=f"GrowingEmbedding: {name}=.*expected whole numbers from 1 on, such as"):
        GrowingEmbedding(3, 1024, **arguments)


def test_the_arguments_are_in_the_configuration() -> None:
    table = GrowingEmbedding(3, 1024, admit={"min_count": 2}, evict={"unused_steps": 5})
    config = table.get_config()
    assert config["admit"] == {"min_count": 2}
    assert config["evict"] == {"unused_steps": 5, "every_steps": 5}
    assert GrowingEmbedding.from_config(config).map_shape == table.map_shape
    plain = GrowingEmbedding(3, 1024).get_config()
    assert plain["admit"] is None and plain["evict"] is None
