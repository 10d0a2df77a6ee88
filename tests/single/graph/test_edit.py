"""Reading and reconnecting graphs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_runner.graph import edit


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    graph = tf.Graph()
    with graph.as_default():
        yield graph


@st.composite
def dags(draw: st.DrawFn) -> list[tuple[list[int], list[int]]]:
    """For each op the numbers of earlier ones that it needs, by data and by control edges."""
    size = draw(st.integers(1, 12))
    edges = []
    for number in range(size):
        earlier = st.lists(st.integers(0, number - 1), max_size=3) if number else st.just([])
        edges.append((draw(earlier), draw(earlier)))
    return edges


def build(edges: list[tuple[list[int], list[int]]]) -> list[tf.Operation]:
    ops: list[tf.Operation] = []
    with tf.Graph().as_default():
        for number, (data, control) in enumerate(edges):
            # Names run against the order, so that sorting by name does not happen to be right.
            name = f"op_{len(edges) - number:02}"
            with tf.control_dependencies([ops[at] for at in control]):
                inputs = [ops[at].outputs[0] for at in data]
                ops.append(tf.add_n(inputs, name=name).op if inputs else tf.constant(1.0, name=name).op)
    return ops


def needs(op: tf.Operation) -> set[tf.Operation]:
    return {tensor.op for tensor in op.inputs} | set(op.control_inputs)


@settings(max_examples=60, deadline=None)
@given(dags(), st.data())
def test_in_order(edges: list[tuple[list[int], list[int]]], data: st.DataObject) -> None:
    ops = build(edges)
    chosen = set(data.draw(st.lists(st.sampled_from(ops), unique=True))) if ops else set()
    ordered = edit.in_order(chosen)
    assert len(ordered) == len(chosen)
    assert set(ordered) == chosen
    place = {op: number for number, op in enumerate(ordered)}
    for op in chosen:
        assert all(place[need] < place[op] for need in needs(op) & chosen)
    assert edit.in_order(set(reversed(ordered))) == ordered


@settings(max_examples=60, deadline=None)
@given(dags())
def test_ancestors_and_descendants_agree(edges: list[tuple[list[int], list[int]]]) -> None:
    ops = build(edges)
    for op in ops:
        above = edit.ancestors([op], control=False)
        everything = edit.ancestors([op])
        assert op in above <= everything
        assert all(needs(one) <= everything for one in everything)
        for other in set(ops) - {op}:
            assert (other in above) == (op in edit.descendants([other.outputs[0]], within=set(ops)))


def test_in_order_of_a_long_chain(graph: tf.Graph) -> None:
    tensor = tf.constant(1.0)
    for _ in range(2000):
        tensor = tf.identity(tensor)
    ops = edit.ancestors([tensor.op])
    assert [op.name for op in edit.in_order(ops)][-1] == tensor.op.name
    assert len(ops) == 2001


def test_ancestors_stop_at_a_tensor(graph: tf.Graph) -> None:
    a, b = tf.constant(1.0, name="a"), tf.constant(2.0, name="b")
    middle = tf.add(a, b, name="middle")
    with tf.control_dependencies([b]):
        end = tf.negative(middle, name="end")
    names = {op.name for op in edit.ancestors([end.op], stop_at=frozenset({"middle:0"}))}
    assert names == {"end", "b"}


def test_descendants_stay_within(graph: tf.Graph) -> None:
    start = tf.constant(1.0)
    one, other = tf.negative(start), tf.exp(start)
    end = one + other
    assert edit.descendants([start], within={one.op, end.op}) == {one.op, end.op}
    assert edit.descendants([other], within={one.op}) == set()


def test_reconnect(graph: tf.Graph) -> None:
    old, new = tf.constant(1.0), tf.constant(5.0)
    both = tf.add(old, old, name="both")
    kept = tf.negative(old, name="kept")
    assert edit.reconnect(old, new, where=lambda op: op.name != "kept") == 2
    assert edit.reconnect(old, new, where=lambda op: op.name != "kept") == 0
    assert edit.reconnect_inputs(kept.op, {"missing:0": new}) == 0
    with tf.Session(graph=graph) as session:
        assert session.run([both, kept]) == [10.0, -1.0]


def test_set_control_inputs(graph: tf.Graph) -> None:
    first, second, third = tf.no_op("first"), tf.no_op("second"), tf.no_op("third")
    with tf.control_dependencies([first]):
        end = tf.no_op("end")
    edit.set_control_inputs(end, [third, second, third])
    assert list(end.control_inputs) == [second, third]
    edit.set_control_inputs(end, [])
    assert list(end.control_inputs) == []


def test_clone(graph: tf.Graph) -> None:
    variable = tf.get_variable("variable", (2,), use_resource=True, initializer=tf.ones_initializer())
    other = tf.get_variable("other", (2,), use_resource=True, initializer=tf.ones_initializer())
    update = tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=0.5, delta=[1.0, 2.0], use_locking=True)
    before = tf.no_op("before")
    with tf.control_dependencies([tf.no_op("outside")]), tf.name_scope("scope"):
        copy = edit.clone(
            update, [other.handle, *list(update.inputs)[1:]], name="copy", control_inputs=[before], device="/cpu:0"
        )
    assert edit.handle_of(update) == [variable.handle.op]
    assert edit.handle_of(copy) == [other.handle.op]
    assert (copy.type, copy.get_attr("use_locking"), list(copy.control_inputs)) == (update.type, True, [before])
    assert tf.DeviceSpec.from_string(copy.device).device_type == "CPU"
    twin = edit.clone(tf.negative([1.0]).op, [tf.constant([3.0])], name="twin", control_inputs=[], device="")
    with tf.Session(graph=graph) as session:
        session.run(tf.global_variables_initializer())
        session.run(copy)
        np.testing.assert_array_equal(session.run(other.value()), [0.5, 0.0])
        np.testing.assert_array_equal(session.run(variable.value()), [1.0, 1.0])
        np.testing.assert_array_equal(session.run(twin.outputs[0]), [-3.0])


def test_every_stateful_op_on_a_variable_writes_but_readers(graph: tf.Graph) -> None:
    state = tf.get_variable("state", [3], tf.int64, use_resource=True)
    number = tf.get_variable("number", [], tf.int64, use_resource=True)
    table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)
    keys = tf.constant([1], tf.int64)
    written = [
        tf.raw_ops.ResourceStridedSliceAssign(ref=state.handle, begin=[0], end=[1], strides=[1], value=keys),
        tf.raw_ops.ResourceCountUpTo(resource=number.handle, limit=5, T=tf.int64).op,
        tf.raw_ops.RngReadAndSkip(resource=state.handle, alg=1, delta=tf.constant(1, tf.uint64)).op,
        state.assign_add(state).op,
    ]
    not_written = [
        tf.gather(state, 1).op,
        state.read_value().op,
        tf.raw_ops.VariableShape(input=state.handle).op,
        tf.raw_ops.LookupTableInsertV2(table_handle=table, keys=keys, values=keys),
    ]
    assert all(map(edit.is_write, written))
    assert not any(map(edit.is_write, not_written))
