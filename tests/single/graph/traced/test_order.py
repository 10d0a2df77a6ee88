"""Which edges of a traced step stay: those to reads leave from values, and all others are as they were."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.many_tables import make_model, make_step
from parallax_runner.graph import edit
from parallax_runner.graph.traced import capture_step as capturing
from parallax_runner.graph.traced.order import READS, keep_only_needed, wait_for_values
from tests.random_graphs import random_graph


@pytest.mark.parametrize("needs_the_value", [True, False])
def test_an_update_behind_a_read_still_waits_for_what_else_it_waited_for(needs_the_value: bool) -> None:
    """Such as for a check in the step, which no read waits for."""
    with tf.Graph().as_default() as graph:
        variable = tf.Variable(1.0, use_resource=True)
        check = tf.no_op("check")
        read = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
        value = read * 2.0 if needs_the_value else tf.constant(2.0)
        with tf.control_dependencies([check, read]):
            update = variable.assign(value, read_value=False)
        wait_for_values(graph)
    assert check in update.control_inputs
    others = [(op.type, op.inputs[0]) for op in update.control_inputs if op is not check]
    assert others == ([] if needs_the_value else [("Identity", read)])


def test_nobody_waits_for_a_read_that_nobody_needs() -> None:
    with tf.Graph().as_default():
        variable = tf.Variable(1.0, use_resource=True)
        reads = [tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32) for _ in range(2)]
        value = tf.constant(2.0)
        with tf.control_dependencies(reads):
            update = variable.assign(value, read_value=False)
        needed = tf.identity(reads[0]).op
        keep_only_needed(tf.get_default_graph(), [update, needed])
    assert update.control_inputs == [reads[0].op]


def edges_one_by_one(graph: tf.Graph) -> dict[str, tuple[list[str], set[str]]]:
    """Returns the control inputs of each op that waits for a read, from a traversal for each op: the ops, and the
    reads whose values the op waits for."""
    found = {}
    for op in graph.get_operations():
        reads = [control for control in op.control_inputs if control.type in READS]
        if reads:
            needed = edit.ancestors([op], control=False)
            others = sorted(control.name for control in op.control_inputs if control.type not in READS)
            found[op.name] = (others, {read.name for read in reads if read not in needed})
    return found


def edges(graph: tf.Graph, names: list[str]) -> dict[str, tuple[list[str], set[str]]]:
    """Returns the control inputs of the named ops in the same form."""
    found = {}
    for name in names:
        controls = graph.get_operation_by_name(name).control_inputs
        assert not any(control.type in READS for control in controls)
        values = [control for control in controls if control.name.endswith("/value")]
        others = sorted(control.name for control in controls if control not in values)
        found[name] = (others, {value.inputs[0].op.name for value in values})
    return found


def test_random_graphs_have_the_edges_that_a_traversal_for_each_op_gives() -> None:
    is_replaced = set()
    for seed in range(20):
        graph = random_graph(seed)
        expected = edges_one_by_one(graph)
        wait_for_values(graph)
        assert edges(graph, list(expected)) == expected, seed
        is_replaced |= {bool(reads) for _, reads in expected.values()}
    assert is_replaced == {True, False}  # some edges are removed, and others start at the value


@pytest.mark.parametrize("front", ["keras", "step"])
def test_models_have_the_edges_that_a_traversal_for_each_op_gives(front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: dict[str, Any] = {}
    found: dict[str, Any] = {}

    def compared(graph: tf.Graph) -> None:
        expected.update(edges_one_by_one(graph))
        wait_for_values(graph)
        found.update(edges(graph, list(expected)))

    monkeypatch.setattr(capturing, "wait_for_values", compared)
    sizes = [5, 6, 7]
    features = {
        "dense": ((4, 13), "float32"),
        "categorical": ((4, len(sizes)), "int64"),
        "label": ((4,), "float32"),
    }
    if front == "keras":
        keras.utils.clear_session(free_memory=False)
        make, options = lambda: make_model(cardinalities=sizes, width=2, optimizer="adam"), {"labels": "label"}
    else:
        make, options = lambda: make_step(cardinalities=sizes, width=2), {}
    capturing.capture_step(make, features, seed=1, options=options)
    assert found == expected
    assert expected
