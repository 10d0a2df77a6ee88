"""The order in which gradients are ready while a backward pass runs, so that early ones can travel meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops
from parallax_runner.rewrite.state import RankGradient


def in_ready_order(gradients: Iterable[RankGradient]) -> list[tuple[int, RankGradient]]:
    """Gradients with how many heavy ops each waits for, the earliest first; the same on all ranks."""
    waits_for = [(len(heavy_ops(edit.ancestors([one.values.op]))), one) for one in gradients]
    return sorted(waits_for, key=lambda pair: pair[0])
