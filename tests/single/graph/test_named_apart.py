"""A second copy of a graph: what TensorFlow matches by name has names of its own."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph.named_apart import named_apart


def test_an_op_of_a_function_stays_with_its_copys_op() -> None:
    """The gradient of a loop is a function whose ops are colocated with the loop, which is outside of it."""
    graph_def = tf.GraphDef()
    graph_def.node.add(name="loop", op="NoOp")
    function = graph_def.library.function.add()
    function.signature.name = "gradient"
    function.node_def.add(name="inside", op="NoOp")
    function.node_def.add(name="less", op="NoOp").attr["_class"].list.s.extend([b"loc:@loop", b"loc:@inside", b"other"])
    (apart,) = named_apart(graph_def, "replica_1/").library.function
    assert list(apart.node_def[1].attr["_class"].list.s) == [b"loc:@replica_1/loop", b"loc:@inside", b"other"]
