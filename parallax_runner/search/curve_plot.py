"""Plots a search: measured times, the fitted curve, and the choice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parallax_runner.files.whole import writing_whole
from parallax_runner.search.trial import Choice, Trial

FILE_NAME = "partition_search.png"
SIZE_INCHES = (7.0, 4.0)
CURVE_POINTS = 201


def draw(trials: Sequence[Trial], choice: Choice | None, path: Path) -> None:
    """Writes the plot as an image. `choice` is None if the search did not finish."""
    # pyplot is not used, because it would look for a display. The imports are here because they are slow.
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    tried = sorted(trials, key=lambda trial: trial.partitions)
    numbers, times_ms = [trial.partitions for trial in tried], [1000 * trial.secs for trial in tried]
    errors_ms = [1000 * trial.error_secs for trial in tried]
    axes.errorbar(
        numbers, times_ms, errors_ms, fmt="o", capsize=3, color="tab:blue", label="measured: median, standard error"
    )
    if choice is not None:
        if choice.curve is not None:
            curve = choice.curve
            along = np.geomspace(numbers[0], numbers[-1], CURVE_POINTS)
            label = (
                f"{1000 * curve.theta0:.3g} + {1000 * curve.theta1:.3g} / P + {1000 * curve.theta2:.3g} · P  (fitted)"
            )
            axes.plot(
                along, [1000 * curve.secs(float(number)) for number in along], "-", color="tab:orange", label=label
            )
        axes.axvline(choice.partitions, linestyle=":", color="tab:green", label=f"chosen: {choice.partitions}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.minorticks_off()
    axes.set(xlabel="partitions P of a sparse variable", ylabel="time of a step, ms")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing_whole(path) as file:
        figure.savefig(file, format="png", dpi=100)
