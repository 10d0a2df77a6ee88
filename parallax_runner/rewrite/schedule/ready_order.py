"""Orders gradients by when the backward pass finishes computing them. Early gradients can then be sent while later
gradients are computed."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_runner.graph import edit
from parallax_runner.graph.heavy_ops import heavy_ops
from parallax_runner.rewrite.state import RankGradient


def in_ready_order(gradients: Iterable[RankGradient]) -> list[tuple[int, RankGradient]]:
    """Returns the gradients, earliest first, each with the number of heavy ops that it waits for. All ranks get the
    same order."""
    waits_for = [(len(heavy_ops(edit.ancestors([one.values.op]))), one) for one in gradients]
    return sorted(waits_for, key=lambda pair: pair[0])
