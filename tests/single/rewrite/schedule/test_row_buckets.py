"""Which rows travel together between the ranks, in which order, and which ids are not asked for twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.graph import edit
from parallax_runner.graph.capture import capture
from parallax_runner.graph.same_values import sources
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.comm_options import Lookahead
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.rewrite.schedule import buckets
from tests.single.plans import plan_of
from tests.single.small_models import FEATURES, ROWS, WIDTH, Features, captured


def table(name: str, ids: tf.Tensor) -> tf.Tensor:
    """Rows of a table [ROWS, WIDTH] of this name."""
    return tf.nn.embedding_lookup(tf.get_variable(name, [ROWS, WIDTH], tf.float64), ids)


def early_and_late(features: Features) -> tf.Tensor:
    """[BATCH]: «early» through a matmul, times «late» and «bias», which are needed behind it."""
    kernel = tf.get_variable("kernel", [WIDTH, WIDTH], tf.float64)
    x = tf.matmul(table("early", features["ids"]), kernel)
    bias = tf.get_variable("bias", [ROWS], tf.float64)
    y = tf.reduce_sum(table("late", features["ids"]) * x, axis=1)
    return y + tf.gather(bias, features["ids"])


def side_by_side(features: Features) -> tf.Tensor:
    """[BATCH]: «a» and «b», both needed at once."""
    kernel = tf.get_variable("kernel", [WIDTH, WIDTH], tf.float64)
    x = tf.matmul(table("a", features["ids"]) + table("b", features["ids"]), kernel)
    return tf.reduce_sum(x, axis=1)


def one_behind_the_other(features: Features) -> tf.Tensor:
    """[BATCH]: ids of the second lookup in «table» are computed from the rows of the first."""
    shared = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
    first = tf.nn.embedding_lookup(shared, features["ids"])
    positive = tf.cast(tf.reduce_sum(first, axis=1) > 0, tf.int32)
    return tf.reduce_sum(first + tf.nn.embedding_lookup(shared, positive), axis=1)


def two_lookups(features: Features) -> tf.Tensor:
    """[BATCH]: rows of «table» by the ids, and the same again, shifted."""
    shared = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
    rows = tf.nn.embedding_lookup(shared, features["ids"])
    return tf.reduce_sum(rows * tf.nn.embedding_lookup(shared, (features["ids"] + 1) % ROWS), axis=1)


def doubled(features: Features) -> tf.Tensor:
    """[BATCH]: a gradient of «table» that has other ids than the lookup."""
    shared = tf.get_variable("table", [ROWS, WIDTH], tf.float64)

    @tf.custom_gradient
    def look_up(ids: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def grad(dy: tf.Tensor, variables: list | None = None) -> tuple[None, list[tf.IndexedSlices]]:
            return None, [tf.IndexedSlices(dy, ids % 3, dense_shape=[ROWS, WIDTH])]

        return tf.nn.embedding_lookup(shared, ids), grad

    return tf.reduce_sum(look_up(features["ids"]), axis=1)


def graph_of(model: Callable[[Features], tf.Tensor], **options: int) -> tf.Graph:
    """Rank 0's of two under comm=sharded."""
    return rank_0_of(captured(model), **options)


def rank_0_of(single: SingleDeviceGraph, **options: int) -> tf.Graph:
    plan = plan_of(classify(single), comm="sharded", fingerprint=single.fingerprint, **{"servers": 0} | options)
    return rewrite_for_rank(single, plan, rank=0, seed=1).graph


def exchanges(graph: tf.Graph) -> list[tf.Operation]:
    """Those of a step, whatever checkpoints and validation need; in the order of their names."""
    step = edit.ancestors([graph.get_operation_by_name("step")])
    return sorted((op for op in step if op.type == "HorovodAlltoall"), key=lambda op: op.name)


def tables_of(exchange: tf.Operation) -> set[str]:
    """The variables whose rows it carries."""
    handles = {op.name for op in edit.ancestors([exchange]) if op.type == "VarHandleOp"}
    return {name.removesuffix("/own_rows") for name in handles if name.endswith("/own_rows")}


@pytest.fixture
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "SMALL_BYTES", 0)


def rows_read_for(exchange: tf.Operation) -> list[tf.Operation]:
    """The ops that read the rows that it carries on this rank."""
    return [op for op in edit.ancestors([exchange], control=False) if op.type == "ResourceGather"]


def from_owners(graph: tf.Graph) -> list[tf.Operation]:
    return [op for op in exchanges(graph) if "from_owners" in op.name]


@pytest.mark.usefixtures("nothing_is_small")
@pytest.mark.parametrize("options", [{}, {"lookahead": Lookahead.ON}])
def test_rows_that_are_needed_later_travel_later_and_nobody_waits_for_them(options: dict[str, Lookahead]) -> None:
    graph = graph_of(early_and_late, **options)
    first, second = from_owners(graph)
    assert tables_of(first) == {"early"}
    assert {"late", "bias"} <= tables_of(second)
    assert first in edit.ancestors([second.inputs[0].op])  # else TensorFlow runs them in any order
    assert first not in edit.ancestors(rows_read_for(second))  # rows are read while others travel
    (matmul,) = [op for op in edit.ancestors([graph.get_operation_by_name("step")]) if op.name == "MatMul"]
    needed = edit.ancestors([matmul])
    assert first in needed and second not in needed


def test_small_ones_travel_with_what_is_needed_before() -> None:
    assert len(from_owners(graph_of(early_and_late))) == 1


@pytest.mark.usefixtures("nothing_is_small")
def test_rows_that_are_needed_at_once_travel_together() -> None:
    (only,) = from_owners(graph_of(side_by_side))
    assert tables_of(only) == {"a", "b"}


@pytest.mark.parametrize("model", [early_and_late, side_by_side, two_lookups])
@pytest.mark.usefixtures("nothing_is_small")
def test_ids_are_asked_for_once(model: Callable[[Features], tf.Tensor]) -> None:
    asking = [op.name for op in exchanges(graph_of(model)) if op.name.endswith("/ids")]
    assert len(asking) == 1 and "lookup_0" in asking[0]


@pytest.mark.parametrize(("model", "lookups"), [(one_behind_the_other, 2), (doubled, 1)])
def test_a_gradient_of_other_ids_says_which(model: Callable[[Features], tf.Tensor], lookups: int) -> None:
    asking = [op.name for op in exchanges(graph_of(model)) if "/ids" in op.name]
    assert len(asking) == lookups + 1 and len([name for name in asking if "push_0" in name]) == 1


def test_what_only_validation_looks_up_is_not_asked_for_in_a_step() -> None:
    def build(features: Features) -> dict[str, Any]:
        shared = tf.get_variable("table", [ROWS, WIDTH], tf.float64)
        validation = tf.reduce_sum(tf.nn.embedding_lookup(shared, features["ids"], name="a_first"))
        loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(shared, features["ids"], name="b_second")))
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
        return {"loss": loss, "train_op": train_op, "validation_loss": validation}

    asking = [op.name for op in exchanges(rank_0_of(capture(build, FEATURES, seed=1))) if op.name.endswith("/ids")]
    assert len(asking) == 1


def test_sources_are_what_the_numbers_come_from() -> None:
    with tf.Graph().as_default():
        a, b = tf.constant([1, 2], name="a"), tf.constant([[3], [4]], name="b")
        flat = tf.concat([a, tf.reshape(b, [-1]), a], axis=0)
        assert sources(tf.identity(tf.cast(flat, tf.int64))) == {"a:0", "b:0"}
        assert sources(tf.squeeze(tf.expand_dims(a, 1))) == {"a:0"}
        assert sources(flat + 1) == {"add:0"}
