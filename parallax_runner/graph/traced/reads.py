"""Moves reads of weights out of loops and branches.

Keras' LSTM and GRU read their weights in the body of a loop. The body is a function, and a variable that a function
reads cannot be placed on a server. No loop or branch in a step writes trained variables, so a read before the loop or
branch returns the same value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable


@contextmanager
def taken_before_loops(step: func_graph.FuncGraph) -> Iterator[None]:
    """Moves reads of trained variables from functions into `step`.

    This applies to functions that are traced inside `step` during the `with` block.
    """
    read = BaseResourceVariable._read_variable_op

    def from_step(this: Any, no_copy: bool = False) -> Any:
        if not this.trainable or not _is_inside(step):
            return read(this, no_copy)
        with step.as_default(), tf.control_dependencies(None):
            return read(this, no_copy)

    with mock.patch.object(BaseResourceVariable, "_read_variable_op", from_step):
        yield


def _is_inside(step: func_graph.FuncGraph) -> bool:
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, func_graph.FuncGraph) and graph is not step:
        graph = graph.outer_graph
        if graph is step:
            return True
    return False
