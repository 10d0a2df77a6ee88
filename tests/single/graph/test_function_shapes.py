"""Functions are called on pieces of what they were made for: notes of their shapes are left out."""

import tensorflow.compat.v1 as tf

from parallax_runner.graph.function_shapes import forget_shapes


def test_functions_forget_the_shapes_of_their_arguments() -> None:
    with tf.Graph().as_default() as graph:
        table = tf.placeholder(tf.float32, [13, 2])
        tf.identity(tf.cond(tf.placeholder(tf.bool, []), lambda: table * 2.0, lambda: table), name="found")
    graph_def = graph.as_graph_def(add_shapes=True)
    noted = str(graph_def.library)
    assert "_input_shapes" in noted and "_output_shapes" in noted and "size: 13" in noted
    forget_shapes(graph_def)
    left = [function for function in graph_def.library.function if "_input_shapes" in function.attr]
    arguments = [note for function in graph_def.library.function for note in function.arg_attr.values()]
    assert not left and arguments and not any("_output_shapes" in note.attr for note in arguments)
