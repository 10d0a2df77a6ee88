"""Variables of the reference: how they are named, loaded and initialised, and batches that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.errors import ParallaxError
from parallax_runner.graph.capture import from_graph
from parallax_runner.verify.reference import Reference
from tests.single.verify.reference_cases import (
    ROWS,
    WIDTH,
    Batch,
    Plain,
    assert_equal,
    captured,
    distinct,
    joined,
    model,
    moved,
    repeated,
    started,
)


def partitioned(features: dict[str, tf.Tensor]) -> dict[str, Any]:
    """A table that the user's own partitioner cuts into three, with slots, and a local variable."""
    table = tf.get_variable(
        "table",
        shape=(ROWS, WIDTH),
        dtype=tf.float64,
        initializer=tf.random_normal_initializer(seed=3, dtype=tf.float64),
        partitioner=tf.fixed_size_partitioner(3),
    )
    bias = tf.get_local_variable("bias", initializer=np.arange(WIDTH) * 1.0)
    rows = tf.nn.embedding_lookup(table, features["ids"], partition_strategy="div")
    loss = tf.reduce_mean((rows + bias - features["target"]) ** 2)
    return {"loss": loss, "train_op": tf.train.AdagradOptimizer(0.5).minimize(loss)}


def test_a_partitioned_variable_is_one() -> None:
    single = captured(partitioned)
    assert sum(variable.full_name == "table" for variable in single.variables) == 3
    pieces = Plain(single)
    data = [repeated(0, rank) for rank in range(2)]
    with started(single, ranks=2) as reference:
        initial = reference.values()
        assert {name: value.shape for name, value in initial.items()} == dict.fromkeys(
            ["table", "table/Adagrad"], (ROWS, WIDTH)
        )
        reference.step(data)
        pieces.step(joined(data))
        for name, value in reference.values().items():
            order = [variable for variable in single.variables if variable.saved and variable.full_name == name]
            expected = np.concatenate([pieces.values()[variable.name] for variable in order])
            np.testing.assert_allclose(value, expected, atol=1e-12)
        after = reference.values()
        assert moved(initial, after)
        reference.load(initial)
        assert_equal(reference.values(), initial, tolerance=0)
        reference.step(data)
        assert_equal(reference.values(), after, tolerance=0)


def test_both_copies_of_the_graph_have_the_same_variables_even_where_their_resources_have_no_name() -> None:
    def nameless(graph_def: tf.GraphDef, _: int) -> tf.GraphDef:
        copy = tf.GraphDef.FromString(graph_def.SerializeToString())
        for node in copy.node:
            if node.op == "VarHandleOp":
                node.attr["shared_name"].s = b""
        return copy

    single = captured(model(optimizer="adam"))
    plain = Plain(single)
    with started(single, seeds=nameless) as reference:
        reference.step([distinct(0)])
        plain.step(distinct(0))
        assert_equal(reference.values(), plain.values())


def test_load_sets_all_ranks_and_initialises_local_variables() -> None:
    single = captured(partitioned)
    data = repeated(0)
    values = {"table": np.random.RandomState(5).normal(size=(ROWS, WIDTH)), "table/Adagrad": np.ones((ROWS, WIDTH))}
    with Reference(single, ranks=2, average_sparse=True) as reference:
        reference.load(values)
        assert_equal(reference.values(), values, tolerance=0)
        expected = np.mean((values["table"][data["ids"]] + np.arange(WIDTH) - data["target"]) ** 2)
        assert reference.step([data, data]) == pytest.approx([expected, expected], abs=1e-12)


def test_initial_values_of_all_ranks_are_those_of_rank_0() -> None:
    def seeds(graph_def: tf.GraphDef, rank: int) -> tf.GraphDef:
        seeded = tf.GraphDef.FromString(graph_def.SerializeToString())
        for node in seeded.node:
            if "seed2" in node.attr:
                node.attr["seed2"].i = rank + 1
        return seeded

    single = captured(partitioned)
    data = repeated(0)
    with started(single, ranks=2, seeds=seeds) as reference:
        first, second = reference.step([data, data])
        assert first == second


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": None}, "missing.*'table'"),
        ({"other": np.zeros(())}, "unknown.*'other'"),
        ({"table": np.zeros((WIDTH, ROWS))}, "«table» has shape"),
    ],
)
def test_load_refuses_values_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    with started(captured(model())) as reference:
        values = {**reference.values(), **change}
        with pytest.raises(ParallaxError, match=message):
            reference.load({name: value for name, value in values.items() if value is not None})


@pytest.mark.parametrize("batches", [[], [{}], [{"ids": np.zeros(1)}], [distinct(0), distinct(1)]])
def test_step_refuses_batches_that_do_not_fit(batches: list[Batch]) -> None:
    with started(captured(model())) as reference, pytest.raises(ParallaxError, match="batch"):
        reference.step(batches)


def test_reference_variables() -> None:
    """A graph of the old kind of variable, which capture converts, and a candidate sampler."""
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        ids = tf.placeholder(tf.int32, (None,))
        table = tf.get_variable("table", (50, WIDTH), use_resource=False)
        bias = tf.get_variable("bias", (50,), use_resource=False)
        loss = tf.reduce_mean(
            tf.nn.sampled_softmax_loss(
                table, bias, tf.cast(ids, tf.int64)[:, None], tf.nn.embedding_lookup(table, ids), 5, 50
            )
        )
        train_op = tf.train.AdagradOptimizer(0.5).minimize(loss, tf.train.get_or_create_global_step())
    single = from_graph(graph, features={"ids": ids.name}, loss=loss, train_op=train_op)
    plain = Plain(single)
    with started(single) as reference:
        for step in range(4):
            data = {"ids": distinct(step)["ids"]}
            assert reference.step([data]) == pytest.approx([plain.step(data)], rel=1e-5)
            assert_equal(reference.values(), plain.values(), tolerance=1e-5)
