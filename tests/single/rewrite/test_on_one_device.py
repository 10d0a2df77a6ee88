"""Rewritten graphs at work: all devices taken away, so that one plain session holds workers and servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.config.schema import UpdateConfig
from parallax_runner.graph import edit
from parallax_runner.graph.update.clipping import clipped
from parallax_runner.rewrite import passes
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.verify.compare import compare
from parallax_runner.verify.reference import Reference
from tests.parallel.cases import Case
from tests.single.rewrite.one_device import OneDevice, Values, assert_same, batch, graph_of
from tests.single.small_models import (
    BATCH,
    FEATURES,
    OPTIMIZERS,
    ROWS,
    WIDTH,
    Features,
    captured,
    clip,
    lookup_model,
    planned,
)


def trained(device: OneDevice, steps: int = 3) -> Values:
    device.initialize()
    for step in range(steps):
        device.step([batch(10 * step + rank) for rank in range(len(device.ranks))])
    return device.variables()


# Removing duplicates once is enough.


@pytest.mark.parametrize("process", [clip, lambda gradients: gradients], ids=["clip", "plain"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_skipping_the_optimizers_deduplication_changes_nothing(
    optimizer: str, process: Callable[[list[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    single = captured(optimizer=optimizer, process=process)
    short = trained(graph_of(single, "local"))
    without = tuple(one for one in passes.all_passes() if one.name != "skip_deduplication")
    monkeypatch.setattr(passes, "all_passes", lambda: without)
    assert_same(short, trained(graph_of(single, "local")))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_optimizers_deduplication_does_not_run(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    single = captured(optimizer=optimizer)

    def left() -> list[str]:
        graph = rewrite_for_rank(single, planned(single, "local"), rank=0, seed=1)
        kinds = ("Unique", "UnsortedSegmentSum")
        return [
            op.name
            for op in edit.ancestors([graph.train_op])
            if op.type in kinds and not op.name.startswith(("merge/", "gradients/"))
        ]

    assert left() == []
    without = tuple(one for one in passes.all_passes() if one.name != "skip_deduplication")
    monkeypatch.setattr(passes, "all_passes", lambda: without)
    assert len(left()) == (0 if optimizer == "gradient_descent" else 2)


def test_a_second_deduplication_does_not_run() -> None:
    """That of clipping comes before that of the optimizer."""

    def clipped_twice(gradients: list[Any]) -> list[Any]:
        variables = tf.trainable_variables()
        return clipped(clipped(gradients, variables, UpdateConfig(clip_norm=0.1)), variables, UpdateConfig(clip_norm=1))

    single = captured(optimizer="adam", process=clipped_twice)
    graph = rewrite_for_rank(single, planned(single, "local"), rank=0, seed=1)
    ops = edit.ancestors([graph.train_op])
    unique = [op.name for op in ops if op.type == "Unique" and not op.name.startswith(("merge/", "gradients/"))]
    assert unique == []


# Lookups.

IDS = {"ids": ((BATCH,), "int32"), "long": ((BATCH,), "int64"), "square": ((2, 3), "int32"), "y": ((BATCH,), "float64")}


def many_lookups(features: Features) -> tf.Tensor:
    """Lookups of every kind, under names to fetch: what a lookup's consumers see."""
    table = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
    numbers = tf.get_variable("numbers", [ROWS], tf.float64)
    lookups = {
        "once": tf.nn.embedding_lookup(table, features["ids"]),
        "long": tf.gather(table, features["long"]),
        "square": tf.nn.embedding_lookup(table, features["square"]),
        "empty": tf.gather(table, tf.boolean_mask(features["ids"], features["ids"] < 0)),
        "numbers": tf.gather(numbers, features["ids"]),
        "scalar": tf.gather(table, features["ids"][0]),
    }
    total = features["y"] * 0.0
    for name, rows in lookups.items():
        total += tf.reduce_sum(tf.identity(rows, name=f"seen/{name}"))
    return total + tf.reduce_sum(tf.identity(table, name="seen/whole"))


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_lookups_of_shards_are_lookups_of_the_whole(partitions: int) -> None:
    single = captured(many_lookups, features=IDS)
    device = graph_of(single, "ps", partitions=partitions)
    device.initialize()
    variables = device.variables()
    table, numbers = variables["table"], variables["numbers"]
    names = ("once", "long", "square", "empty", "numbers", "scalar", "whole")
    for ids, long, square in [
        ([0, 1, 2, 3], [5, 4, 3, 2], [[0, 1, 2], [3, 4, 5]]),
        ([5, 5, 0, 5], [1, 1, 1, 1], [[2, 2, 2], [3, 3, 2]]),
        ([4, 3, 2, 3], [0, 5, 0, 5], [[0, 0, 0], [0, 0, 0]]),
    ]:
        values = {"ids": np.array(ids), "long": np.array(long), "square": np.array(square), "y": np.zeros(BATCH)}
        seen = device.session.run({name: f"seen/{name}:0" for name in names}, device.fed([values]))
        expected = {
            "once": table[ids],
            "long": table[long],
            "square": table[square],
            "empty": np.zeros((0, WIDTH)),
            "numbers": numbers[ids],
            "scalar": table[ids[0]],
            "whole": table,
        }
        for name in names:
            np.testing.assert_array_equal(seen[name], expected[name], err_msg=name)
            assert seen[name].shape == expected[name].shape


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_shapes_stay_known(partitions: int) -> None:
    single = captured(many_lookups, features=IDS)
    device = graph_of(single, "ps", partitions=partitions)
    seen = {name: device.ranks[0].graph.get_tensor_by_name(f"seen/{name}:0") for name in ("once", "square", "empty")}
    inputs = {name: tensor.op.inputs[0].shape.as_list() for name, tensor in seen.items()}
    assert inputs == {"once": [BATCH, WIDTH], "square": [2, 3, WIDTH], "empty": [None, WIDTH]}


# Initial values and results do not depend on how many shards there are.


@pytest.mark.parametrize("comm", ["ps", "hybrid"])
@pytest.mark.parametrize("pieces", [1, 2])
def test_initial_values_do_not_depend_on_partitions(comm: str, pieces: int) -> None:
    single = captured(lambda features: lookup_model(features, pieces=pieces), optimizer="ftrl")

    def initial(comm: str, partitions: int) -> Values:
        device = graph_of(single, comm, partitions=partitions)
        device.initialize()
        return device.variables()

    expected = initial("local", 1)
    assert expected["table"].shape == (ROWS, WIDTH)
    assert np.unique(expected["table"]).size == ROWS * WIDTH  # Drawn, not zeros.
    for partitions in (1, 2, 4):
        assert_same(initial(comm, partitions), expected)


def test_initial_values_follow_the_seed() -> None:
    single = captured()
    plan = planned(single, "local")
    tables = []
    for seed in (1, 1, 2):
        device = OneDevice(rewrite_for_rank(single, plan, rank=0, seed=seed))
        device.initialize()
        tables.append(device.variables()["table"])
    np.testing.assert_array_equal(tables[0], tables[1])
    assert not np.array_equal(tables[0], tables[2])


@pytest.mark.parametrize("partitions", [1, 2, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_with_servers_trains_as_one_without(optimizer: str, partitions: int) -> None:
    single = captured(optimizer=optimizer, process=clip)
    expected = trained(graph_of(single, "local"))
    assert_same(trained(graph_of(single, "ps", partitions=partitions)), expected, 1e-12)


@pytest.mark.parametrize(("optimizer", "average_sparse"), [("adam", True), ("momentum", False)])
def test_two_workers_with_servers_train_as_one_on_both_batches(optimizer: str, average_sparse: bool) -> None:
    """Without clipping, the sum over two ranks is twice the mean: as if the loss were doubled for the table alone."""
    single = captured(optimizer=optimizer)
    together = graph_of(single, "ps", workers=2, partitions=3, average_sparse=average_sparse)
    found = trained(together)

    def twice(gradients: list[Any]) -> list[Any]:
        sparse, dense = gradients
        return [tf.IndexedSlices(2.0 * sparse.values, sparse.indices, sparse.dense_shape), dense]

    wide = {name: ((2 * BATCH, *shape[1:]), dtype) for name, (shape, dtype) in FEATURES.items()}
    process = (lambda gradients: gradients) if average_sparse else twice
    alone = graph_of(captured(optimizer=optimizer, process=process, features=wide), "local")
    alone.initialize()
    for step in range(3):
        halves = [batch(10 * step + rank) for rank in (0, 1)]
        alone.step([{name: np.concatenate([half[name] for half in halves]) for name in halves[0]}])
    assert_same(found, alone.variables(), 1e-12)
    assert together.variables(rank=1)["global_step"] == 3


@pytest.mark.parametrize("clip", [True, False])
def test_servers_add_up_bfloat16(clip: bool) -> None:
    """For which no accumulator of TensorFlow has a kernel."""
    case = Case(comm="ps", model="bfloat16", optimizer="momentum", partitions=2, clip=clip)
    single = case.single()
    device = OneDevice(*(rewrite_for_rank(single, case.plan(single), rank=rank, seed=1) for rank in (0, 1)))
    device.initialize()
    with Reference(single, ranks=2, average_sparse=True) as reference:
        reference.load(device.variables())
        for step in range(3):
            batches = [case.batch(step, rank) for rank in (0, 1)]
            device.step(batches)
            reference.step(batches)
        comparison = compare(device.variables(), reference.values(), tolerance=1e-2)
    assert comparison.ok, comparison.first_difference


def test_the_follower_has_the_chiefs_updates_when_its_step_is_over() -> None:
    single = captured()
    device = graph_of(single, "ps", workers=2, partitions=2)
    device.initialize()
    before = device.variables(rank=1)["table"]
    device.step([batch(0), batch(1)])
    assert not np.array_equal(device.variables(rank=1)["table"], before)


def test_a_rank_of_its_own_draws() -> None:
    """Random ops of the step differ by rank, initial values do not."""

    def noisy(features: Features) -> tf.Tensor:
        return lookup_model(features) + tf.identity(tf.random.uniform([BATCH], dtype=tf.float64), name="noise")

    single = captured(noisy)
    plan = planned(single, "mpi")
    draws, tables = [], []
    for rank, first_step in ((0, 0), (1, 0), (0, 5)):
        device = OneDevice(rewrite_for_rank(single, plan, rank=rank, seed=1, first_step=first_step))
        device.initialize()
        draws.append(device.session.run("noise:0"))
        tables.append(device.variables()["table"])
    np.testing.assert_array_equal(tables[0], tables[1])
    np.testing.assert_array_equal(tables[0], tables[2])
    assert not np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
