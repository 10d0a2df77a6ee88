"""Chooses which rows are sent together between the ranks: rows that are ready, or needed, at the same time.

Rows that are needed first do not wait for other rows. Rows that are ready first are sent while other rows are computed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.graph.heavy_ops import heavy_ops
from parallax_runner.graph.marks import marks_behind, positions
from parallax_runner.rewrite.rewrite_state import RankGradient, Rewrite
from parallax_runner.rewrite.schedule.ready_order import in_ready_order

# Fewer bytes than this are not worth a separate exchange.
SMALL_BYTES = 64_000


def buckets_to_owners(rewrite: Rewrite, gradients: Sequence[RankGradient]) -> list[list[RankGradient]]:
    """Groups gradients that are ready at the same time, in ready order. Small gradients join the next large
    gradient."""
    buckets: dict[int, list[RankGradient]] = defaultdict(list)
    small: list[RankGradient] = []
    depth = 0
    for depth, gradient in in_ready_order(gradients):
        if _travelling_bytes(rewrite, gradient.variables[0]) < SMALL_BYTES:
            small.append(gradient)
        else:
            buckets[depth] += [*small, gradient]
            small = []
    buckets[depth] += small
    return [buckets[depth] for depth in sorted(buckets)]


def _computed_without(looked_up: Sequence[Sequence[tf.Operation]], fetched: set[tf.Operation]) -> list[int]:
    """Returns, for each group of lookups, the number of heavy ops in `fetched` that do not need their rows."""
    marked = {op: 1 << number for number, ops in enumerate(looked_up) for op in ops}
    needs = marks_behind(fetched, marked, control=False)
    heavy = heavy_ops(fetched)
    counts = [len(heavy)] * len(looked_up)
    for op in heavy:
        for number in positions(needs[op]):
            counts[number] -= 1
    return counts


def buckets_from_owners(
    rewrite: Rewrite, looked_up: Sequence[tuple[str, Sequence[tf.Operation]]], fetched: set[tf.Operation]
) -> list[list[int]]:
    """Groups looked-up variables whose rows are needed at the same time, in the order in which they are needed.

    Each entry of `looked_up` contains a variable's name in the plan, and the ops that look up rows of this variable.
    The groups contain indices of entries. Small entries join the group before them. `fetched` contains all ops that a
    step, a fetch of the loss, or validation may run.
    """
    computed_without = _computed_without([ops for _, ops in looked_up], fetched)
    buckets: list[list[int]] = []
    last = None
    for number in sorted(range(len(looked_up)), key=lambda number: (computed_without[number], number)):
        is_small = _travelling_bytes(rewrite, looked_up[number][0]) < SMALL_BYTES
        if buckets and (is_small or computed_without[number] == last):
            buckets[-1].append(number)
        else:
            buckets.append([number])
            last = computed_without[number]
    return buckets


def _travelling_bytes(rewrite: Rewrite, variable: str) -> float:
    """Returns the number of bytes per step that the plan predicts for a variable, in both directions together, or
    infinity if the plan contains no prediction."""
    (planned,) = [one for one in rewrite.plan.variables if one.name == variable]
    return math.inf if planned.sent_bytes_per_step is None else planned.sent_bytes_per_step
