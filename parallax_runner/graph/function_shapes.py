"""Removes the shapes that a graph's functions record for their arguments."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

OF_FUNCTION = "_input_shapes"
OF_ARGUMENT = "_output_shapes"


def forget_shapes(graph_def: tf.GraphDef) -> None:
    """Removes the recorded argument shapes from the functions of `graph_def`, in place.

    A rank may call a function with only a part of the model's tensor. If the part's shape contradicts the recorded
    shape, TensorFlow skips some optimizations of that rank's graph. That rank then rounds its results differently from
    the other ranks.
    """
    for function in graph_def.library.function:
        function.attr.pop(OF_FUNCTION, None)
        for argument in function.arg_attr.values():
            argument.attr.pop(OF_ARGUMENT, None)
