"""The plan changes between two steps of a script: its variables, its data and its fetches go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import parallax_runner as parallax
from parallax_runner.errors import TrainingError
from tests.single.api.cluster import Cluster, at_once

ROWS, RATE, WORKERS = 24, 0.5, 2
ORDERS = ((2, 5), (4, 1), (5, 3))  # after these steps, the table has so many shards


def build(scope: str) -> tf.Graph:
    """Rows of a table, in the order of a pipeline that the script starts and of a lookup table, times weights."""
    graph = tf.Graph()
    with graph.as_default():
        numbers = tf.placeholder(tf.int64, [None], name="numbers")
        iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(numbers).batch(2))
        batch = tf.identity(iterator.get_next(), name="batch")
        keys = tf.range(ROWS, dtype=tf.int64)
        backwards = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys[::-1]), -1)
        ids = tf.identity(backwards.lookup(batch), name="ids")
        with tf.variable_scope(scope, partitioner=parallax.get_partitioner(1)):
            table = tf.get_variable("table", [ROWS, 2], tf.float64, initializer=tf.ones_initializer())
        with tf.variable_scope(scope):
            weights = tf.get_variable("weights", [2], tf.float64, initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.reduce_sum(tf.nn.embedding_lookup(table, ids) * weights, axis=1), name="loss")
        step = tf.train.get_or_create_global_step()
        tf.train.GradientDescentOptimizer(RATE).minimize(loss, step, name="train")
        tf.group(iterator.initializer, name="start")
        graph.scope = scope
    return graph


def one_device(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Table and weights after some steps of two workers, whose second reads the numbers backwards."""
    table, weights = np.ones((ROWS, 2)), np.ones(2)
    for step in range(steps):
        sparse, dense = np.zeros_like(table), np.zeros_like(weights)
        for numbers in (np.arange(ROWS), np.arange(ROWS)[::-1]):
            ids = ROWS - 1 - numbers[2 * step : 2 * step + 2]
            np.add.at(sparse, ids, weights / 2)
            dense += table[ids].mean(axis=0) / WORKERS
        table, weights = table - RATE * sparse, weights - RATE * dense
    return table, weights


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


def test_variables_and_data_go_on_when_the_plan_changes(cluster: Cluster) -> None:
    graph, steps = build("recut"), 7
    sessions = cluster.sessions(graph, workers=WORKERS, partitions=2, orders=ORDERS)

    def train(rank: int) -> tuple[list[int], list[int]]:
        session, numbers = sessions[rank], np.arange(ROWS)[:: -1 if rank else 1]
        session.run("start", {"numbers:0": [numbers]})
        seen: list[int] = []
        shards: list[int] = []
        for _ in range(steps):
            shards.append(len(shards_in(session)))
            seen += session.run(["batch:0", "train"])[0][0].tolist()
        return seen, shards

    seen = at_once([lambda rank=rank: train(rank) for rank in range(WORKERS)])
    assert [numbers for numbers, _ in seen] == [list(range(14)), list(range(23, 9, -1))]
    assert [shards for _, shards in seen] == [[2, 2, 5, 5, 1, 3, 3]] * WORKERS
    table, weights = one_device(steps)
    found = sessions[0].run([f"{graph.scope}/table", f"{graph.scope}/weights:0", "global_step:0"])
    np.testing.assert_allclose(found[0][0], table, rtol=1e-12)
    np.testing.assert_allclose(found[1][0], weights, rtol=1e-12)
    assert found[2] == [steps]
    with pytest.raises(TrainingError, match="parallel_run already did so"):
        sessions[0].run(f"{graph.scope}/table/part_0/Assign")


def shards_in(session: Any) -> set[str]:
    """The names of the table's shards in a worker's current graph."""
    ops = session.tf_session.graph.get_operations()
    return {op.name for op in ops if op.type == "VarHandleOp" and "table/part_0/shard_" in op.name}


def test_a_driver_that_ends_the_training_ends_the_script(cluster: Cluster) -> None:
    (session,) = cluster.sessions(build("ended"), orders=((1, 3), (2, None)))
    session.run("start", {"numbers:0": [np.arange(ROWS)]})
    for _ in range(2):
        assert not session.should_stop()
        session.run("train")
    assert session.should_stop()
    with pytest.raises(SystemExit):
        session.run("train")
