"""Which edges of a traced step stay: those to reads leave from values, and all others are as they were."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.graph.traced.order import keep_only_needed, wait_for_values


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
