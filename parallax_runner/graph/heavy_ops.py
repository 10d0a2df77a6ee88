"""Ops that take most of the time in a forward and backward pass, and their computational cost."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops as framework_ops

HEAVY_OPS = frozenset(
    {
        "BatchMatMulV2",
        "BlockLSTM",
        "BlockLSTMGrad",
        "BlockLSTMGradV2",
        "BlockLSTMV2",
        "Conv2D",
        "Conv2DBackpropFilter",
        "Conv2DBackpropInput",
        "FusedBatchNormGradV3",
        "MatMul",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessWhile",
        "While",
    }
)


def heavy_ops(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns the given ops that take most of the time in a step."""
    return {op for op in ops if op.type in HEAVY_OPS}


def weight(op: tf.Operation) -> float:
    """Returns the number of multiplications and additions in a heavy op, or 1 if TensorFlow cannot derive the number
    from static shapes."""
    try:
        flops = framework_ops.get_stats_for_node_def(op.graph, op.node_def, "flops").value
    except ValueError:  # a shape is unknown before the graph runs
        flops = None
    return float(flops or 1.0)
