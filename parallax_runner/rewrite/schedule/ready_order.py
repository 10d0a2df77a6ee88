"""Orders gradients by when the backward pass finishes computing them. Early gradients can then be sent while later
gradients are computed."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops
from parallax_runner.graph.marks import bits_of, marks_behind
from parallax_runner.rewrite.rewrite_state import RankGradient


def in_ready_order(gradients: Iterable[RankGradient]) -> list[tuple[int, RankGradient]]:
    """Returns the gradients, earliest first, each with the number of heavy ops that it waits for. All ranks get the
    same order."""
    gradients = list(gradients)
    needed = edit.ancestors(one.values.op for one in gradients)
    heavy = marks_behind(needed, bits_of(heavy_ops(needed)))
    waits_for = [(heavy[one.values.op].bit_count(), one) for one in gradients]
    return sorted(waits_for, key=lambda pair: pair[0])
