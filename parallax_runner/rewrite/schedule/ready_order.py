"""In which order gradients appear while a backward pass runs, so that early ones can travel meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops
from parallax_runner.rewrite.distributed_graph import Aggregate


def in_order_of_appearance(gradients: Iterable[Aggregate]) -> list[tuple[int, Aggregate]]:
    """Gradients with how many heavy ops each waits for, the earliest first; the same on all ranks."""
    waits_for = [(len(heavy_ops(edit.ancestors([one.values.op]))), one) for one in gradients]
    return sorted(waits_for, key=lambda pair: pair[0])
