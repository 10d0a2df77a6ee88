"""Draws how steps spend their time, with a bar for each rank. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from parallax_runner.files.whole import writing_whole
from parallax_runner.profile.shares import Part, StepShares

COLOURS = {
    Part.COMPUTE: "tab:blue",
    Part.COMMUNICATION: "tab:orange",
    Part.SERVERS: "tab:green",
    Part.WAITING: "tab:gray",
    Part.IDLE: "gainsboro",
}
WIDTH_INCHES, BAR_INCHES, MARGIN_INCHES = 8.0, 0.45, 1.6
MIN_LABELLED_SHARE = 0.06  # a narrower bar has no room for its label


def plot_shares(ranks: Sequence[StepShares], path: Path) -> None:
    """Draws how many milliseconds each part of an average step takes, and labels each part with its share in percent.

    `ranks` has one entry for each rank, which covers all profiled steps of the rank.
    """
    # Does not use pyplot, which would look for a display and keep the figure in memory.
    figure = Figure(figsize=(WIDTH_INCHES, MARGIN_INCHES + BAR_INCHES * len(ranks)), layout="constrained")
    axes = figure.subplots()
    titles = [f"worker {one.rank}" for one in ranks]
    left = [0.0] * len(ranks)
    for part in Part:
        widths = [one.parts_ns[part] / len(one.steps) / 1e6 for one in ranks]
        bars = axes.barh(titles, widths, left=left, label=part.value, color=COLOURS[part])
        labels = [f"{one.share(part):.0%}" if one.share(part) >= MIN_LABELLED_SHARE else "" for one in ranks]
        axes.bar_label(bars, labels, label_type="center", fontsize="small")
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()  # puts worker 0 at the top
    axes.set(xlabel="ms per traced step")
    axes.set_title(_title(ranks), fontsize="small")
    axes.legend(ncols=len(Part), loc="upper center", bbox_to_anchor=(0.5, -0.25), fontsize="small", frameon=False)
    with writing_whole(path) as file:
        figure.savefig(file, format="png", dpi=100)


def _title(ranks: Sequence[StepShares]) -> str:
    steps = sorted({step for one in ranks for step in one.steps})
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"mean of {len(steps)} steps, {steps[0]} to {steps[-1]}"
