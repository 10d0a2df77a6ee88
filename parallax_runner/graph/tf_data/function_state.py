"""Determines whether the calls to a function in a `tf.data` graph depend on each other."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from parallax_runner.graph.all_nodes import nodes_in_functions
from parallax_runner.graph.tf_data.upstream import called

# Ops that TensorFlow marks as stateful only because they can call stateful functions.
CALLING = ("StatefulPartitionedCall", "If", "While", "Case")
# Ops that read a variable or a lookup table without changing it.
READING = (
    *("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"),
    *("LookupTableFindV2", "LookupTableSizeV2"),
)
# Ops that call Python code, which can change a variable or a lookup table.
PYTHON = ("PyFunc", "EagerPyFunc")
# A stateful op that either ends the run or has no effect.
CHECKING = "Assert"


class FunctionState:
    """Determines which functions of a GraphDef have state."""

    def __init__(self, graph_def: Any) -> None:
        self._functions = {function.signature.name: function for function in graph_def.library.function}
        self._resources_change = any(map(_may_change_resources, nodes_in_functions(graph_def)))

    def calls_depend(self, node: Any) -> bool:
        """Returns whether a function that `node` calls has side effects or depends on earlier calls. For example,
        such a function draws random numbers, changes a variable or calls Python."""
        return any(self._has_state(inner) for each in called(node) for inner in self._functions[each.name].node_def)

    def _has_state(self, node: Any) -> bool:
        op = op_def_registry.get(node.op)
        if op is None:
            return True
        if node.op in READING:
            return self._resources_change
        return (op.is_stateful and node.op not in (*CALLING, CHECKING)) or self.calls_depend(node)


def _may_change_resources(node: Any) -> bool:
    op = op_def_registry.get(node.op)
    if op is None or node.op in PYTHON:
        return True
    takes_resource = any(argument.type == tf.resource.as_datatype_enum for argument in op.input_arg)
    return bool(op.is_stateful) and takes_resource and node.op not in READING
