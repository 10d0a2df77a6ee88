"""Which rows travel together between the ranks: what is there, or needed, at the same time.

Rows that are needed first do not wait for others, and rows that are there first travel while others are computed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops
from parallax_runner.rewrite.distributed_graph import Aggregate, Rewrite
from parallax_runner.rewrite.schedule.ready_order import in_order_of_appearance

# Less than this is not worth an exchange of its own.
SMALL_BYTES = 64_000


def flights_to_owners(rewrite: Rewrite, gradients: Sequence[Aggregate]) -> list[list[Aggregate]]:
    """Gradients that are there at the same time, and small ones with the next that is not; in order of appearance."""
    flights: dict[int, list[Aggregate]] = defaultdict(list)
    small: list[Aggregate] = []
    depth = 0
    for depth, gradient in in_order_of_appearance(gradients):
        if _travelling_bytes(rewrite, gradient.variables[0]) < SMALL_BYTES:
            small.append(gradient)
        else:
            flights[depth] += [*small, gradient]
            small = []
    flights[depth] += small
    return [flights[depth] for depth in sorted(flights)]


def flights_from_owners(
    rewrite: Rewrite, looked_up: Sequence[tuple[str, Sequence[tf.Operation]]], fetched: set[tf.Operation]
) -> list[list[int]]:
    """Numbers of looked-up variables (name, and the ops that look up) whose rows are needed at the same time, and small
    ones with some that are needed before; in order of need. `fetched` is all that a step may compute."""
    heavy = heavy_ops(fetched)
    computed_without = [
        len(heavy - edit.descendants([op.outputs[0] for op in ops], within=fetched)) for _, ops in looked_up
    ]
    flights: list[list[int]] = []
    last = None
    for number in sorted(range(len(looked_up)), key=lambda number: (computed_without[number], number)):
        is_small = _travelling_bytes(rewrite, rewrite.shards_of(looked_up[number][0])[0].variable) < SMALL_BYTES
        if flights and (is_small or computed_without[number] == last):
            flights[-1].append(number)
        else:
            flights.append([number])
            last = computed_without[number]
    return flights


def _travelling_bytes(rewrite: Rewrite, variable: str) -> float:
    """What the plan foresees for it, there and back; infinite where only running tells."""
    (planned,) = [one for one in rewrite.plan.variables if one.name == variable]
    return math.inf if planned.sent_bytes_per_step is None else planned.sent_bytes_per_step
