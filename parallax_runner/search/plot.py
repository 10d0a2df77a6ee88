"""Plots a search: measured times, the fitted curve, and the choice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parallax_runner.files.whole import writing_whole
from parallax_runner.search.trial import Choice, Trial

FILE_NAME = "partition_search.png"
SIZE_INCHES = (7.0, 4.0)
CURVE_POINTS = 201
BAND_EVERY = 8  # the curve has this many points for each point of the band
LIKELY_PERCENT = (5, 95)  # the band's limits, as percentiles of the possible times


def draw(trials: Sequence[Trial], choice: Choice | None, path: Path) -> None:
    """Writes the plot as an image. `choice` is None if the search did not finish."""
    # pyplot is not used, because it would look for a display. The imports are here because they are slow.
    import numpy as np
    from matplotlib.figure import Figure

    from parallax_runner.search.fit import fit

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
            few, found = along[::BAND_EVERY], fit(tuple(trials))
            draws_ms = np.array([1000 * found.secs(float(number)) for number in few])
            low, high = np.percentile(draws_ms, LIKELY_PERCENT, axis=1)
            axes.fill_between(few, low, high, color="tab:orange", alpha=0.2, linewidth=0)
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
