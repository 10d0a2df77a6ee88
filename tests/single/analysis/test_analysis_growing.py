"""The analysis of a graph with a vocabulary that grows, and the marks of its ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.analysis.growing import growing_tables
from parallax_runner.analysis.variable_info import GradientKind, GrowingTable, VariableInfo
from parallax_runner.errors import PlanError
from parallax_runner.graph import edit
from parallax_runner.graph.capture import capture
from parallax_runner.graph.growing.marks import key_calls
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.graph.traced.capture_step import capture_step
from parallax_runner.layers import GrowingEmbedding, growing_lookup

Look = Callable[[GrowingEmbedding, Any], Any]


def captured(look: Look, *, trains: bool = True, evict: dict[str, int] | None = None) -> SingleDeviceGraph:
    """Returns the graph of a step that looks up keys by `look`."""

    def make() -> Any:
        table, dense = GrowingEmbedding(2, 2048, evict=evict, name="table"), keras.layers.Dense(1)
        optimizer = keras.optimizers.Adagrad(0.1)
        if evict is not None:
            table.build(None)
            dense.build([None, 2])
            optimizer.build([*table.trainable_variables, *dense.trainable_variables])
            table.set_optimizer(optimizer)

        def step(batch: dict[str, Any]) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(dense(look(table, batch["key"]))))
            variables = [*(table.trainable_variables if trains else []), *dense.trainable_variables]
            slopes = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(slopes, variables, strict=True))
            return loss

        return step

    return capture_step(make, {"key": ((4,), "int64")}, seed=1, options={})


def inserting(table: GrowingEmbedding, keys: Any) -> Any:
    return table(keys, training=True)


def finding(table: GrowingEmbedding, keys: Any) -> Any:
    return table(keys)


def both(table: GrowingEmbedding, keys: Any) -> Any:
    return inserting(table, keys) + finding(table, keys + 1)


def twice(table: GrowingEmbedding, keys: Any) -> Any:
    return inserting(table, keys) + inserting(table, keys + 1)


def variable(infos: tuple[VariableInfo, ...], name: str) -> VariableInfo:
    return next(info for info in infos if info.name == name)


def test_rows_of_a_table_that_grows_can_be_owned() -> None:
    single = captured(inserting)
    infos = classify(single)
    rows = variable(infos, "table/rows")
    assert (rows.gradient, rows.immovable_op) == (GradientKind.SPARSE, None)
    assert rows.unknown_ahead is not None
    assert variable(infos, "table/keys").gradient is GradientKind.NONE
    of_map = tuple(f"table/{name}" for name in ("keys", "index", "fill", "overflow"))
    assert growing_tables(single) == (GrowingTable("table", "table/rows", of_map, 2, False),)


def test_calls_are_found_in_order() -> None:
    single, graph = captured(both), tf.Graph()
    with graph.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    first, second = key_calls(graph.get_operations())
    assert first.write is not None
    assert first.write.inputs[0].op.name == "table/rows"
    assert second.write is None
    assert [handle.op.name.rpartition("/")[2] for handle in first.handles.given] == [
        "keys",
        "index",
        "fill",
        "overflow",
    ]
    assert first.table == second.table
    assert first.table.shape.places == 2


def test_a_step_may_also_look_up_without_inserts() -> None:
    assert len(growing_tables(captured(both))) == 1


def test_a_step_that_never_inserts_is_refused() -> None:
    with pytest.raises(PlanError, match=r"calls «table» \(GrowingEmbedding\) without training=True"):
        growing_tables(captured(finding))


def test_a_table_that_is_not_trained_is_refused() -> None:
    with pytest.raises(PlanError, match="no gradient reaches its rows «table/rows»: set trainable=True"):
        growing_tables(captured(inserting, trains=False))


def in_branch(table: GrowingEmbedding, keys: Any) -> Any:
    return tf.cond(keys[0] > 0, lambda: inserting(table, keys), lambda: tf.zeros([4, 2]))


def in_loop(table: GrowingEmbedding, keys: Any) -> Any:
    table.build(None)
    looked_up = tf.map_fn(lambda key: inserting(table, key), keys, fn_output_signature=tf.float32)
    return looked_up + inserting(table, keys)


@pytest.mark.parametrize("look", [in_branch, in_loop])
def test_a_lookup_that_not_all_ranks_may_make_is_refused(look: Look) -> None:
    """No exchange replaces it, so each rank would insert keys of its own."""
    with pytest.raises(PlanError, match=r"«table» \(GrowingEmbedding\) is called in a branch, a loop"):
        growing_tables(captured(look))


def of_graph(*, validates: bool, finds: bool = False, waits: bool = False) -> SingleDeviceGraph:
    """Returns a TensorFlow 1 graph that inserts keys by two lookups, also in validation if `validates`. If it `finds`,
    a third lookup of the step inserts none. It `waits` for the others or not."""
    v1 = tf.compat.v1

    def build(features: dict[str, Any]) -> dict[str, Any]:
        table: dict[str, Any] = {"name": "table", "dim": 2, "capacity": 2048}
        rows = [growing_lookup(features["key"] + number, **table, training=True) for number in range(2)]
        if finds:
            with v1.control_dependencies(rows if waits else []):
                rows.append(growing_lookup(features["key"], **table, training=False))
        loss = v1.reduce_mean(v1.square(v1.add_n(rows)))
        train_op = v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=v1.train.get_or_create_global_step())
        return {"loss": loss, "train_op": train_op, **({"validation_loss": loss} if validates else {})}

    return capture(build, {"key": ((4,), "int64")}, seed=1)


def test_inserts_of_a_table_never_run_at_once() -> None:
    """TensorFlow 1 orders nothing, and with 200,000 keys, two lookups at once gave each key two rows."""
    single, graph = of_graph(validates=False), tf.Graph()
    with graph.as_default():
        tf.import_graph_def(single.meta_graph.graph_def, name="")
    first, second = key_calls(graph.get_operations())
    assert first.write in edit.ancestors([second.op])
    assert len(growing_tables(single)) == 1


def test_validation_that_inserts_is_refused() -> None:
    with pytest.raises(PlanError, match=r"validation or the served model calls «table» .* with training=True"):
        growing_tables(of_graph(validates=True))


def test_a_lookup_that_may_see_inserts_or_not_is_refused() -> None:
    with pytest.raises(PlanError, match=r"nothing decides whether it sees the keys that the step inserts"):
        growing_tables(of_graph(validates=False, finds=True))
    assert len(growing_tables(of_graph(validates=False, finds=True, waits=True))) == 1


def test_a_table_that_evicts_keys_has_slots_that_start_afresh() -> None:
    single = captured(inserting, evict={"unused_steps": 3, "every_steps": 2})
    (table,) = growing_tables(single)
    assert (table.unused_steps, table.every_steps) == (3, 2)
    assert table.renewed == variable(classify(single), "table/rows").slots
    (call,) = key_calls(edit_graph(single).get_operations())
    assert [one.initial for one in call.slot_writes] == [0.1]


def test_several_steps_of_a_table_in_one_are_refused() -> None:
    with pytest.raises(PlanError, match=r"calls «table» .* 2 times, .* call it once with concatenated keys"):
        growing_tables(captured(twice, evict={"unused_steps": 3}))
    growing_tables(captured(twice))


def edit_graph(single: SingleDeviceGraph) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(single.meta_graph.graph_def, name="")
    return graph
