"""A rank notices exactly the rows that its steps write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.delta_layout import Chunk, Layout, Told
from parallax_runner.checkpoints.delta_ops import ChangedElements, ChangedRows, changes_of
from parallax_runner.graph.capture import capture
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.train.session_config import session_config
from parallax_runner.worker.deltas import contents_of
from tests.single.small_models import FEATURES, Features, captured, lookup_model, planned

ROWS, BATCH = 40, 4


def model(features: Features) -> tf.Tensor:
    return lookup_model(features, rows=ROWS)


class Trained:
    """One process that has begun to notice changes."""

    def __init__(self, single: SingleDeviceGraph, *, skip_nonfinite: bool = False) -> None:
        plan = planned(single, "local", workers=1)
        self.graph: DistributedGraph = rewrite_for_rank(single, plan, rank=0, seed=1, skip_nonfinite=skip_nonfinite)
        self.changes = changes_of(self.graph, contents_of(plan, single))
        self.graph.graph.finalize()
        self.session = tf.Session(graph=self.graph.graph, config=session_config(1))
        self.session.run(self.graph.initialize)
        self.begin_again()

    def begin_again(self) -> None:
        for one in self.changes:
            one.begin_again(self.session)

    def step(self, ids: list[int], y: float = 1.0) -> None:
        batch: dict[str, Any] = {"ids": ids, "x": np.ones([BATCH, 2]), "y": np.full(BATCH, y)}
        features = self.graph.features[0]
        fed = {features[name]: array for name, array in batch.items() if name in features}
        self.session.run([self.graph.train_op, self.graph.loss], fed)

    def found(self, name: str = "table") -> list[int]:
        (one,) = (one for one in self.changes if one.variable.name == name)
        return [int(place) for place in one.find(self.session)]


@pytest.mark.parametrize("optimizer", ["gradient_descent", "momentum", "adagrad", "rmsprop", "ftrl"])
def test_the_rows_of_steps_are_noticed(optimizer: str) -> None:
    trained = Trained(captured(model, optimizer=optimizer))
    assert trained.found() == []
    trained.step([3, 3, 30, 7])
    assert trained.found() == [3, 7, 30]
    trained.step([1, 3, 39, 0])
    assert trained.found() == [0, 1, 3, 7, 30, 39]
    trained.begin_again()
    trained.step([5, 5, 5, 5])
    assert trained.found() == [5]


def test_the_values_are_those_of_the_rows() -> None:
    trained = Trained(captured(model, optimizer="adagrad"))
    trained.step([3, 3, 30, 7])
    (one,) = trained.changes
    assert isinstance(one, ChangedRows)
    assert one.find(trained.session).tolist() == [3, 7, 30]
    (table,) = (variable for variable in trained.graph.variables if variable.name == "table")
    with trained.graph.graph.as_default():
        values = trained.session.run(f"{table.pieces[0].handle.op.name}/Read/ReadVariableOp:0")
    np.testing.assert_array_equal(one.read(trained.session, 1, 2), values[[7, 30]])


def test_an_update_of_all_rows_counts_for_all_rows() -> None:
    """TensorFlow 1's Adam moves each row that has a momentum."""
    trained = Trained(captured(model, optimizer="adam"))
    assert trained.found() == list(range(ROWS))


def test_a_lookup_in_a_function_is_no_write() -> None:
    def with_function(features: Features) -> tf.Tensor:
        table = tf.get_variable("table", [ROWS, 2], tf.float64)
        looked_up = tf.function(lambda ids: tf.gather(table, ids), autograph=False)(features["ids"])
        return tf.reduce_sum(looked_up, axis=1)

    trained = Trained(captured(with_function))
    trained.step([3, 3, 30, 7])
    assert trained.found() == [3, 7, 30]


def test_a_step_that_is_skipped_changes_nothing() -> None:
    trained = Trained(captured(model, optimizer="adagrad"), skip_nonfinite=True)
    trained.step([3, 3, 30, 7], y=np.nan)
    assert trained.found() == []
    trained.step([1, 1, 1, 2])
    assert trained.found() == [1, 2]


def test_an_average_that_validation_reads_is_in_a_delta() -> None:
    def build(features: Features) -> dict[str, Any]:
        average = tf.train.ExponentialMovingAverage(0.9)

        def loss(table: tf.Tensor) -> tf.Tensor:
            return tf.reduce_mean(tf.square(tf.gather(table, features["ids"])[:, 0] - features["y"]))

        table, other = (tf.get_variable(name, [ROWS, 2], tf.float64) for name in ("table", "other"))
        losses = loss(table) + loss(other)
        with tf.control_dependencies([tf.train.AdagradOptimizer(0.1).minimize(losses)]):
            train_op = average.apply([table, other])
        return {"loss": losses, "train_op": train_op, "validation_loss": loss(average.average(table))}

    trained = Trained(capture(build, FEATURES, seed=1))
    trained.step([3, 3, 30, 7])
    assert trained.found() == trained.found("other") == [3, 7, 30]
    assert {one.variable.name for one in trained.changes} == {"table", "other", "table/ExponentialMovingAverage"}
    assert trained.found("table/ExponentialMovingAverage") == list(range(ROWS))


def test_a_write_that_only_the_loss_waits_for_is_noticed() -> None:
    def build(features: Features) -> dict[str, Any]:
        table = tf.get_variable("table", [ROWS, 2], tf.float64)
        loss = tf.reduce_mean(tf.square(tf.gather(table, features["ids"])[:, 0] - features["y"]))
        train_op = tf.train.AdagradOptimizer(0.1).minimize(loss)
        with tf.control_dependencies([loss, tf.scatter_mul(table, [5], [[0.5, 0.5]])]):
            return {"loss": tf.identity(loss), "train_op": train_op}

    trained = Trained(capture(build, FEATURES, seed=1))
    trained.step([3, 3, 30, 7])
    assert trained.found() == [3, 5, 7, 30]


def growing_model(features: Features) -> tf.Tensor:
    from parallax_runner.layers import GrowingEmbedding  # imports Keras

    table = GrowingEmbedding(2, 2048, seed=1, name="growing")
    return tf.reduce_sum(tf.cast(table(features["ids"], training=True), tf.float64), axis=1)


def test_new_keys_are_noticed_in_the_map_and_its_rows() -> None:
    trained = Trained(captured(growing_model, optimizer="gradient_descent"))
    assert {one.variable.name: type(one) for one in trained.changes} == {
        "growing/rows": ChangedRows,
        **{f"growing/{name}": ChangedElements for name in ("keys", "index", "fill", "overflow")},
    }
    trained.step([3, 3, 30, 7])
    rows = trained.found("growing/rows")
    places = trained.found("growing/keys")
    assert rows == places and len(rows) == 3
    assert len(trained.found("growing/index")) == len(trained.found("growing/fill")) == 3
    trained.begin_again()
    trained.step([3, 3, 30, 8])
    assert len(trained.found("growing/rows")) == 3
    assert len(trained.found("growing/keys")) == 1
    assert trained.found("growing/overflow") == []


def test_the_places_of_a_variable_follow_each_other_by_rank() -> None:
    told = [[Told("a", 3, 8), Told("b", 0, 8)], [Told("a", 2, 8), Told("b", 4, 8)]]
    layout = Layout(told, chunk_bytes=16)
    assert dict(layout.totals) == {"a": 5, "b": 4}
    assert layout.chunks == [
        [Chunk(0, 0, 2, 0), Chunk(0, 2, 1, 2)],
        [Chunk(0, 0, 2, 3), Chunk(1, 0, 2, 0), Chunk(1, 2, 2, 2)],
    ]
    assert [layout.name_of(1, chunk) for chunk in layout.chunks[1]] == ["a", "b", "b"]
