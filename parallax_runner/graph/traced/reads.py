"""Moves reads of weights out of loops and branches.

Keras' LSTM and GRU read their weights in the body of a loop. The body is a function, and a variable that a function
reads cannot be placed on a server. A read before the loop or branch returns the same value, but only if no loop or
branch writes the variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from parallax_runner.graph.effects import Effects


@contextmanager
def taken_before_loops(step: func_graph.FuncGraph, written: frozenset[int]) -> Iterator[set[int]]:
    """Moves reads of trained variables from functions into `step`, and yields the handle ids of these variables.

    This applies to functions that are traced inside `step` during the `with` block. The variables whose handle ids are
    in `written` are read where the model reads them.
    """
    read = BaseResourceVariable._read_variable_op
    moved = set[int]()

    def from_step(this: Any, no_copy: bool = False) -> Any:
        is_traced = hasattr(this.handle, "_id")  # an eager variable, as all variables of a step are
        if not this.trainable or not is_traced or this.handle._id in written or not _is_inside(step):
            return read(this, no_copy)
        moved.add(this.handle._id)
        with step.as_default(), tf.control_dependencies(None):
            return read(this, no_copy)

    with mock.patch.object(BaseResourceVariable, "_read_variable_op", from_step):
        yield moved


def written_inside(step: func_graph.FuncGraph) -> frozenset[int]:
    """Returns the handle ids of the variables that the loops, branches and other functions of a traced step write."""
    outer = {id(inner): captured for captured, inner in step.captures}
    effects = Effects.of(step)
    found = set[int]()
    for op in step.get_operations():
        if effects.called_by(op.node_def):
            found |= {outer[id(handle)]._id for handle in effects.written_inputs(op) if id(handle) in outer}
    return frozenset(found)


def _is_inside(step: func_graph.FuncGraph) -> bool:
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, func_graph.FuncGraph) and graph is not step:
        graph = graph.outer_graph
        if graph is step:
            return True
    return False
