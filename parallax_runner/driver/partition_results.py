"""The results of a search for the number of shards: fields of `summary.json`, metrics and a plot."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parallax_runner.search import curve_plot, record
from parallax_runner.search.trial import Choice, Trial
from parallax_runner.track.tracker import Tracker

log = logging.getLogger(__name__)

PLOTS = "plots"


@dataclass(frozen=True)
class SearchSummary:
    """The fields of `summary.json` that describe the search: the trials, the fitted curve and the choice. The fields
    have the same names as in the file. The numbers of steps and seconds include only trials that were part of
    training."""

    partition_candidates: tuple[int, ...]
    partition_step_ms: tuple[float, ...]
    partition_error_ms: tuple[float, ...]
    partition_choice: int | None
    partition_theta0_ms: float | None
    partition_theta1_ms: float | None
    partition_theta2_ms: float | None
    partition_search_steps: int | None = field(default=None, metadata={"optional": True})
    partition_search_secs: float | None = field(default=None, metadata={"optional": True})

    @classmethod
    def of(cls, trials: Sequence[Trial], choice: Choice | None) -> SearchSummary:
        """Returns the summary of the trials and the choice."""
        curve = None if choice is None else choice.curve
        return cls(
            partition_candidates=tuple(trial.partitions for trial in trials),
            partition_step_ms=tuple(1000 * trial.secs for trial in trials),
            partition_error_ms=tuple(1000 * trial.error_secs for trial in trials),
            partition_choice=None if choice is None else choice.partitions,
            partition_theta0_ms=None if curve is None else 1000 * curve.theta0,
            partition_theta1_ms=None if curve is None else 1000 * curve.theta1,
            partition_theta2_ms=None if curve is None else 1000 * curve.theta2,
        )


def track(trials: Sequence[Trial], choice: Choice | None, tracker: Tracker, run_dir: Path) -> None:
    """Logs the step times as a plot, and as metrics whose step is the number of shards. Metrics are logged only after
    the search has made its choice, because a tracker accepts steps only in ascending order, while a search may try a
    smaller number of shards after a larger number."""
    if not trials:
        return
    if choice is not None:
        _log(sorted(trials, key=lambda trial: trial.partitions), choice, tracker)
    tracker.log_artifact(record.in_run(run_dir), record.FOLDER)
    path = run_dir / PLOTS / curve_plot.FILE_NAME
    try:
        curve_plot.draw(trials, choice, path)
    except Exception as error:  # such as a broken font cache or a full disk; the numbers are saved nevertheless
        log.warning("cannot draw the plot of the search: %s: %s", type(error).__name__, error)
        return
    tracker.log_artifact(path, PLOTS)


def _log(trials: Sequence[Trial], choice: Choice, tracker: Tracker) -> None:
    for trial in trials:
        times = {
            "search/step_ms": 1000 * trial.secs,
            "search/error_ms": 1000 * trial.error_secs,
            "search/fitted_step_ms": None if choice.curve is None else 1000 * choice.curve.secs(trial.partitions),
        }
        tracker.log_metrics(trial.partitions, times)
    tracker.log_metrics(0, {"search/partitions": choice.partitions})
