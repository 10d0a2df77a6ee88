"""A rank asks the owners of keys for the keys' rows, and owners of new rows write them. The rank counts its keys
(parallax_runner.rewrite.every_route.vocabulary_counts)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.growing.marks import key_calls
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.routes.alltoall.grow import ask_for_rows_of_keys
from parallax_runner.train.growth import growth_of
from parallax_runner.train.growth_since_report import GrowthSinceReport
from parallax_runner.verify.reference import Reference
from tests.growing_keys import bucket_of
from tests.single.small_models import captured, planned

UNSEEN = 5000  # added to a key, it is one of no training step
KEYS = ([3, 5, 5, 8], [5, 3, 12, 1], [900, 3, 8, 8])


def growing(features: dict[str, tf.Tensor]) -> tf.Tensor:
    from parallax_runner.layers import GrowingEmbedding  # imports Keras

    table = GrowingEmbedding(2, 4096, seed=1, name="table", dtype="float64")
    return tf.reduce_sum(table(features["ids"], training=True), axis=1) + features["x"][:, 0]


def batches(size: int, width: int) -> list[dict[str, np.ndarray]]:
    return [
        {"ids": np.resize(keys, size).astype(np.int32), "x": np.ones([size, width]), "y": np.zeros([size])}
        for keys in KEYS
    ]


@pytest.mark.usefixtures("mirrored")
def test_one_owner_trains_as_the_graph_itself() -> None:
    """A single rank sends its keys to itself: an exchange that returns what it gets is then the right one."""
    single = captured(growing)
    plan = planned(single, "sharded", workers=1)
    graph = rewrite_for_rank(single, plan, rank=0, seed=1)
    size, width = graph.features[0]["x"].shape.as_list()
    with tf.Session(graph=graph.graph) as session:
        session.run(graph.initialize)
        for batch in batches(size, width):
            session.run(graph.train_op, {graph.features[0][name]: array for name, array in batch.items()})
        found = session.run({variable.name: variable.pieces[0].read().values for variable in graph.variables})
    for name, expected in reference_values(single, size, width).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, err_msg=name)
    seen = {int(key) for batch in batches(size, width) for key in batch["ids"]}
    assert found["table/fill"].sum() == len(seen)
    assert all(found["table/fill"][bucket_of(key)] for key in seen)


def reference_values(single: SingleDeviceGraph, size: int, width: int) -> dict[str, np.ndarray]:
    with Reference(single, ranks=1, average_sparse=True) as reference:
        reference.initialize()
        for batch in batches(size, width):
            reference.step([batch])
        return reference.values()


def looking(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Inserts some keys, and looks up others as a validation does."""
    from parallax_runner.layers import growing_lookup  # imports Keras

    table = {"name": "table", "dim": 2, "capacity": 4096, "seed": 1}
    found = growing_lookup(features["ids"], **table, training=True)
    found += growing_lookup(features["ids"] + UNSEEN, **table, training=False)
    return tf.reduce_sum(tf.cast(found, tf.float64), axis=1) + features["x"][:, 0]


@pytest.mark.usefixtures("mirrored")
def test_a_lookup_without_training_inserts_nothing() -> None:
    single = captured(looking)
    graph = rewrite_for_rank(single, planned(single, "sharded", workers=1), rank=0, seed=1)
    size, width = graph.features[0]["x"].shape.as_list()
    with tf.Session(graph=graph.graph) as session:
        session.run(graph.initialize)
        growth = GrowthSinceReport()
        growth.begin(session, graph.vocabularies, 3)
        told = []
        for number, batch in enumerate(batches(size, width), start=4):
            session.run(graph.train_op, {graph.features[0][name]: array for name, array in batch.items()})
            told.append(growth_of(growth.fields(session, graph.vocabularies, number)["vocabularies"])["table"])
    seen = [{int(key) for key in batch["ids"]} for batch in batches(size, width)]
    so_far = [set().union(*seen[: number + 1]) for number in range(len(seen))]
    assert [one.keys for one in told] == [len(keys) for keys in so_far]
    assert [one.new_keys for one in told] == np.diff([0, *map(len, so_far)]).tolist()
    assert {(one.steps, one.overflow, one.capacity, one.places) for one in told} == {(1, 0, 4096, 4)}
    buckets = Counter(bucket_of(key) for key in so_far[-1])
    assert told[-1].fullest == max(buckets.values())


def inserting_twice(features: dict[str, tf.Tensor]) -> tf.Tensor:
    from parallax_runner.layers import growing_lookup  # imports Keras

    table = {"name": "table", "dim": 2, "capacity": 4096, "seed": 1, "training": True}
    found = growing_lookup(features["ids"], **table) + growing_lookup(features["ids"] + UNSEEN, **table)
    return tf.reduce_sum(tf.cast(found, tf.float64), axis=1) + features["x"][:, 0]


@pytest.mark.usefixtures("mirrored")
def test_an_insert_waits_for_the_inserts_of_the_lookup_before() -> None:
    """Otherwise chance decides about the rows of new keys, and a key could get two rows."""
    single = captured(inserting_twice)
    graph = rewrite_for_rank(single, planned(single, "sharded"), rank=0, seed=1)
    first, second = (
        op
        for op in edit.in_order(edit.ancestors([graph.train_op]))
        if op.type == "StatefulPartitionedCall" and "parallax_insert_keys" in op.get_attr("f").name
    )
    assert first in edit.ancestors([second])
    writes = [op for op in edit.ancestors([second]) if op.type == "ResourceScatterUpdate"]
    assert any(first in edit.ancestors([write]) for write in writes)


def test_a_graph_without_such_tables_has_no_counts() -> None:
    single = captured()
    graph = rewrite_for_rank(single, planned(single, "local"), rank=0, seed=1)
    assert graph.vocabularies == {}
    with tf.Session(graph=graph.graph) as session:
        assert GrowthSinceReport().fields(session, graph.vocabularies, 1) == {}


@pytest.mark.usefixtures("mirrored")
def test_no_op_of_the_step_uses_the_whole_map() -> None:
    single = captured(growing)
    graph = rewrite_for_rank(single, planned(single, "sharded"), rank=1, seed=1)
    step = edit.ancestors([graph.train_op, graph.loss.op])
    (call,) = [call for call in key_calls(graph.graph.get_operations()) if call.write is not None]
    assert call.op not in step
    assert call.write not in step
    handles = {op.name for op in step if op.type == "VarHandleOp"}
    assert {f"table/{name}/own_rows" for name in ("keys", "index", "fill", "overflow", "rows")} <= handles
    assert ask_for_rows_of_keys.writes == {"placements", "initializers", "sent", "stands_for"}
