"""Finds variables that count updates. An update writes such a variable without using a gradient, and writes the same
value on every replica."""

from __future__ import annotations

from collections.abc import Callable, Collection

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.boundary import Boundary


def find_counters(
    graph: tf.Graph,
    boundary: Boundary,
    candidates: list[str],
    *,
    differs_by_rank: Callable[[tf.Operation], bool],
    server_reads: frozenset[str],
) -> dict[str, str | None]:
    """Returns the `candidates` that count updates, such as global_step and Adam's beta powers.

    The dict maps each counter to the name of an op that prevents the variable from being placed on a server, or that
    writes it before the gradients are computed. The value is None if there is no such op. Batch statistics are not
    counters, because the written values differ by rank: `differs_by_rank` returns whether those of a write do.
    """
    before_gradients = edit.ancestors(graph.get_tensor_by_name(name).op for name in boundary.tensors)
    found: dict[str, str | None] = {}
    for name in candidates:
        users = graph.get_operation_by_name(name).outputs[0].consumers()
        writes = [op for op in users if edit.is_write(op) and op in boundary.region]
        if writes and not any(map(differs_by_rank, writes)):
            found[name] = _hindering_op(users, writes, before_gradients, server_reads)
    return found


def _hindering_op(
    users: Collection[tf.Operation],
    writes: Collection[tf.Operation],
    before_gradients: Collection[tf.Operation],
    server_reads: Collection[str],
) -> str | None:
    """Returns the first op, by name, that writes a counter too early or uses it in a way that a server does not know,
    or None if there is none."""
    early = [op for op in writes if op in before_gradients]
    known = [op for op in users if op.type in server_reads or edit.updates_places(op.type)]
    odd = [op.name for op in users if op in early or op not in known]
    return min(odd, default=None)
