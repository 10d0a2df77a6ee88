"""The marks behind ops, on random graphs, against one traversal per op."""

from __future__ import annotations

import random

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.marks import bits_of, marks_behind, positions
from tests.random_graphs import random_graph


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_marks_are_those_of_all_ancestors(seed: int, control: bool) -> None:
    ops = random_graph(seed).get_operations()
    draw = random.Random(seed)
    bits = bits_of(draw.sample(ops, 12))
    stop_at = frozenset(draw.choice(op.outputs).name for op in draw.sample(ops, 6) if op.outputs)
    found = marks_behind(ops, bits, stop_at=stop_at, control=control)
    for op in ops:
        behind = edit.ancestors([op], stop_at=stop_at, control=control)
        assert found[op] == sum(bit for marked, bit in bits.items() if marked in behind)


def test_paths_through_other_ops_do_not_count() -> None:
    with tf.Graph().as_default():
        first = tf.constant(1.0)
        middle = tf.identity(first)
        last = tf.identity(middle)
    found = marks_behind({first.op, last.op}, {first.op: 1})
    assert found == {first.op: 1, last.op: 0}


def test_marks_go_around_a_loop() -> None:
    """An op at the beginning of a loop's body depends on the body's end, through the back edge."""
    with tf.Graph().as_default() as graph:
        tf.disable_control_flow_v2()
        try:
            tf.while_loop(lambda x: x < 5.0, lambda x: tf.sin(tf.cos(x)), [tf.constant(0.0)])
        finally:
            tf.enable_control_flow_v2()
    ops = graph.get_operations()
    by_type = {op.type: op for op in ops}
    found = marks_behind(ops, {by_type["Sin"]: 1})
    assert found[by_type["Cos"]] == 1
    assert found == {op: int(by_type["Sin"] in edit.ancestors([op])) for op in ops}


def test_positions() -> None:
    assert list(positions(0b1001010)) == [1, 3, 6]
