"""Finds variables that count updates: written by the update without a gradient and alike on every replica."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary


def find_counters(
    graph: tf.Graph,
    boundary: Boundary,
    candidates: list[str],
    *,
    is_write: Callable[[tf.Operation], bool],
    differs_by_rank: Callable[[tf.Operation], bool],
    server_reads: frozenset[str],
) -> dict[str, str | None]:
    """By name, those of `candidates` that count (global_step, Adam's beta powers); the value names an op, if any, that
    uses the variable as no server can, or writes it before the gradients are there. Batch statistics do not count:
    what they write differs by rank."""
    before_gradients = edit.ancestors(graph.get_tensor_by_name(name).op for name in boundary.tensors)
    found: dict[str, str | None] = {}
    for name in candidates:
        users = graph.get_operation_by_name(name).outputs[0].consumers()
        writes = [op for op in users if is_write(op) and op in boundary.region]
        sources = edit.ancestors(writes, stop_at=boundary.tensors, control=False)
        if writes and not any(differs_by_rank(source) for source in sources):
            early = [op for op in writes if op in before_gradients]
            odd = [op.name for op in users if op in early or (op.type not in server_reads and not is_write(op))]
            found[name] = min(odd) if odd else None
    return found
