"""Which variables an op writes inside the functions that it calls."""

from __future__ import annotations

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from parallax_runner.graph.effects import Effects


def test_only_the_variables_that_a_function_writes() -> None:
    with tf.Graph().as_default() as graph:
        read, written = (tf.get_variable(name, [], tf.float64, use_resource=True) for name in ("read", "written"))
        inner = tf2.function(lambda: written.assign_add(read).read_value())
        branch = tf2.cond(read > 0, inner, read.read_value)
        loop = tf2.while_loop(lambda at: at < read, lambda at: [at + written.assign(at)], [read + 0.0])[0]
        effects = Effects.of(graph)
    while branch.op.type != "If":
        branch = branch.op.inputs[0]
    assert effects.written_by(branch.op) == ["written"]
    while loop.op.type != "While":
        loop = loop.op.inputs[0]
    assert effects.written_by(loop.op) == ["written"]
