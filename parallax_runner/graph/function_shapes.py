"""What functions of a graph note of the shapes they were made for."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

OF_FUNCTION = "_input_shapes"
OF_ARGUMENT = "_output_shapes"


def forget_shapes(graph_def: tf.GraphDef) -> None:
    """Changes `graph_def`: its functions say no more which shapes their arguments have.

    A rank may call them on pieces of what the model calls them on. Where a note contradicts a call, TensorFlow leaves
    out a part of its optimizations of that rank's graph, and rounds otherwise than on the other ranks.
    """
    for function in graph_def.library.function:
        function.attr.pop(OF_FUNCTION, None)
        for argument in function.arg_attr.values():
            argument.attr.pop(OF_ARGUMENT, None)
