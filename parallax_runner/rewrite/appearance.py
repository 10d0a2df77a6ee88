"""In which order gradients appear while a backward pass runs, so that early ones can travel meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_runner.graph import edit
from parallax_runner.rewrite.distributed_graph import Aggregate

# What takes the time of a backward pass.
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


def in_order_of_appearance(gradients: Iterable[Aggregate]) -> list[tuple[int, Aggregate]]:
    """Gradients with how many heavy ops each waits for, the earliest first; the same on all ranks."""
    waits_for = [(_heavy_ops_before(gradient), gradient) for gradient in gradients]
    return sorted(waits_for, key=lambda pair: pair[0])


def _heavy_ops_before(gradient: Aggregate) -> int:
    return sum(op.type in HEAVY_OPS for op in edit.ancestors([gradient.values.op]))
