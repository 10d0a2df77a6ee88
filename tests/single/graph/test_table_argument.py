"""The argument `table`: a model's function learns the kinds and the sizes of the features from the data."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models import tabular
from parallax_runner.config.compose import Composer
from parallax_runner.data.indexed import of_source
from parallax_runner.data.table.columns.kinds import columns_of
from parallax_runner.data.table.fitted import fitted
from parallax_runner.data.table.table_dataset import TableDataset
from parallax_runner.driver.check import validated
from parallax_runner.errors import ConfigError
from parallax_runner.graph.build import build_graph
from parallax_runner.graph.table_argument import roles_of, table_argument
from tests.single.data.table.in_memory import stored

COLUMNS = {"user": "category", "age": "number", "bought": "label", "w": "weight"}
ROWS = {"user": ["a", "b", "b", "a"], "age": [1, 2, 3, 4], "bought": [0, 1, 1, 0], "w": [1, 1, 2, 2]}
PLAIN = of_source({"x": np.zeros(3)}, None, seed=1)


@pytest.fixture
def dataset(tmp_path):
    columns = columns_of(COLUMNS)
    table = stored([one.raw for one in columns], {"train": ROWS})
    return TableDataset(table, columns, (), fitted(table, columns, cache_dir=str(tmp_path)), shuffle="full", seed=1)


def graph_of_columns(features, optimizer, *, width, table):
    weights = tf.get_variable("weights", [table["user"].size, width])
    rows = tf.nn.embedding_lookup(weights, features["user"])
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, axis=1) - features["bought"]))
    return {"loss": loss, "train_op": optimizer.minimize(loss, tf.train.get_or_create_global_step())}


def without_table(features, optimizer):
    raise AssertionError


def may_have_a_table(features, optimizer, table=None):
    raise AssertionError


def config_of(tmp_path, **model):
    config = validated(Composer().job(["model=simple", "comm=local", f"run_dir={tmp_path}"]))
    return dataclasses.replace(config, model=model, data={"_target_": "unused", "batch_size": 2})


def shapes_of(single):
    return {one.name: one.shape for one in single.variables}


def test_a_graph_is_built_with_the_sizes_of_the_columns(tmp_path, dataset):
    config = config_of(tmp_path, _target_=f"{__name__}.graph_of_columns", width=5)
    assert shapes_of(build_graph(config, dataset))["weights"] == (3, 5)


def test_the_keras_model_has_its_label_and_weights_from_the_columns(tmp_path, dataset):
    arguments = {"task": "binary", "embedding_size": 4, "units": [8]}
    config = config_of(tmp_path, _target_="models.tabular.make_model", labels=None, sample_weight=None, **arguments)
    single = build_graph(config, dataset)
    assert shapes_of(single)["embedding_user/embeddings"] == (3, 4)
    assert set(single.features) == {"user", "age", "bought", "w"}
    assert roles_of(dataset) == {"labels": "bought", "sample_weight": "w"} and roles_of(PLAIN) == {}


def test_only_a_function_that_needs_columns_needs_a_table(dataset):
    assert table_argument(without_table, {}, dataset) == {} == table_argument(may_have_a_table, {}, PLAIN)
    assert set(table_argument(may_have_a_table, {}, dataset)["table"]) == set(COLUMNS)
    assert table_argument(graph_of_columns, {"table": 5}, PLAIN) == {}, "the user has set it"
    with pytest.raises(ConfigError, match=r"model._target_=mine: this model is built for the columns of a table"):
        table_argument(graph_of_columns, {"_target_": "mine"}, PLAIN)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_built_in_model_learns_from_each_kind_of_column(tmp_path, task):
    given = {
        **{"a b": "number", "bucket": {"number": {"buckets": [3]}}, "user": {"category": {"hash": 50}}},
        **{"tags": {"categories": {"padded_to": 3}}, "free": "categories", "y": "label"},
        **{"words": {"text": {"padded_to": 4}}, "few": {"text": {"padded_to": 2, "split": "character"}}},
    }
    draws = np.random.default_rng(1)
    tags = [[str(one) for one in draws.integers(0, 5, draws.integers(0, 4))] for _ in range(400)]
    rows = {
        **{"a b": draws.normal(size=400), "bucket": draws.normal(size=400) + 3, "tags": tags, "free": tags},
        **{"words": tags, "few": tags},
        **{"user": [str(number % 40) for number in range(400)], "y": [float("3" in one) for one in tags]},
    }
    columns = columns_of(given)
    table = stored([one.raw for one in columns], {"train": rows})
    found = fitted(table, columns, cache_dir=str(tmp_path))
    dataset = TableDataset(table, columns, (), found, shuffle="full", seed=1)
    model = tabular.make_model(table=dataset.table_features, task=task, embedding_size=4, units=[16], learning_rate=0.1)
    first = trained(model, dataset.train_batch(0, 400))
    for _ in range(150):
        last = trained(model, dataset.train_batch(0, 400))
    assert np.isfinite(last) and last < first / 2
    with pytest.raises(ValueError, match="task clicks: expected binary or regression"):
        tabular.make_model(table=dataset.table_features, task="clicks", embedding_size=4, units=[16])


@pytest.mark.parametrize(
    ("label", "cells", "told"),
    [
        ("label", [0.0, 3.5], "the label «y» is between 0 and 3.5, .* expects 0 to 1; .* set model.task=regression"),
        ("label", [-1.0, 1.0], "the label «y» is between -1 and 1"),
        ({"label": {"classes": ["no", "maybe", "yes"]}}, ["no", "yes"], "the label «y» is between 0 and 2"),
    ],
)
def test_labels_that_are_no_probabilities_are_refused(tmp_path, label, cells, told):
    described = table_features(tmp_path, {"x": "number", "y": label}, {"x": [1, 2], "y": cells})
    settings = {"table": described, "embedding_size": 4, "units": [8]}
    with pytest.raises(ValueError, match=told):
        tabular.make_model(task="binary", **settings)
    tabular.make_model(task="regression", **settings)


def test_a_label_between_0_and_1_is_a_probability(tmp_path):
    described = table_features(tmp_path, {"x": "number", "y": "label"}, {"x": [1, 2], "y": [0.25, 1.0]})
    tabular.make_model(table=described, task="binary", embedding_size=4, units=[8])


def test_a_table_without_a_label_is_refused(tmp_path):
    described = table_features(tmp_path, {"x": "number"}, {"x": [1, 2]})
    with pytest.raises(ValueError, match=r"data.columns has no column of the kind label"):
        tabular.make_model(table=described, task="regression", embedding_size=4, units=[8])


def test_a_saved_model_with_lists_loads_again(tmp_path):
    described = table_features(tmp_path, {"tags": "categories", "y": "label"}, {"tags": [["a"], ["b"]], "y": [0, 1]})
    model = tabular.make_model(table=described, task="binary", embedding_size=4, units=[8])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    tags = tf.ragged.constant([[0, 1], [], [1]], dtype=tf.int64)
    np.testing.assert_array_equal(loaded({"tags": tags}), model({"tags": tags}))


def table_features(folder, given, rows):
    columns = columns_of(given)
    table = stored([one.raw for one in columns], {"train": rows})
    found = fitted(table, columns, cache_dir=str(folder))
    return TableDataset(table, columns, (), found, shuffle="full", seed=1).table_features


def trained(model, batch):
    import tensorflow as tf2

    free = tf2.RaggedTensor.from_row_splits(batch.pop("free/values"), batch.pop("free/row_splits"))
    label = batch.pop("y")
    model.reset_metrics()
    return float(model.train_on_batch({**batch, "free": free}, label, return_dict=True)["loss"])
