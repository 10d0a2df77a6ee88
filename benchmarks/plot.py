"""Plots each mode's share of the ideal: a point for each round, and a bar for the median."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.modes import IDEAL, Measurement


def draw(measurements: Sequence[Measurement], path: Path, caption: str) -> None:
    """Writes a PNG."""
    ideal = {one.round: one.rate for one in measurements if one.mode == IDEAL}
    modes = [mode for mode in dict.fromkeys(one.mode for one in measurements) if mode != IDEAL]
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for place, mode in enumerate(modes):
        shares = [one.rate / ideal[one.round] for one in measurements if one.mode == mode]
        axes.bar(place, statistics.median(shares), width=0.6, color="tab:blue", alpha=0.35)
        axes.plot([place] * len(shares), shares, "o", color="tab:blue")
    axes.axhline(1.0, color="gray", linewidth=1)
    axes.set_xticks(range(len(modes)), modes)
    axes.set_ylabel(f"{measurements[0].unit}, share of two independent processes")
    axes.set_ylim(bottom=0)
    axes.set_title(caption, fontsize=8, wrap=True)
    figure.savefig(path, dpi=150)
