"""The parent run of a sweep's jobs. The parent run records the jobs' parameters and objectives. A parameter that
differs among the jobs is recorded as a list."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from parallax_runner.config.frozen import plain
from parallax_runner.config.objective import Goal
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.check import CheckedSweep
from parallax_runner.driver.recording import recorded, tracker_class
from parallax_runner.driver.used_params import used_params
from parallax_runner.track.careful import CarefulTracker
from parallax_runner.track.origin import origin_of
from parallax_runner.track.params import flatten
from parallax_runner.track.tracker import NoTracker, RunInfo, Tracker

SWEPT_TAG = "parallax.swept"
DIR_TAG = "parallax.sweep_dir"
OBJECTIVE_TAG = "parallax.objective"
# These values contain the job's folder.
OWN_KEYS = ("run_dir", "ckpt.dir", "sweep.dir")


def open_parent(sweep: CheckedSweep) -> Tracker:
    """Opens the sweep's parent run in the sweep's folder, or continues it if the sweep was started before. Returns a
    NoTracker if jobs are not recorded.

    Raises ConfigError if the run cannot be recorded.
    """
    config = sweep.first
    cls = tracker_class(config)
    if cls is None:
        return NoTracker()
    cls.check(plain(config))
    swept = " ".join(f"{key}={value}" for key, value in sweep.swept.items())
    run = RunInfo(
        run_dir=sweep.dir,
        name=config.tracking.run_name or f"sweep {sweep.dir.name}",
        config=recorded(config),
        tags={**recorded(config)["tracking"]["tags"], SWEPT_TAG: swept, DIR_TAG: str(sweep.dir)},
        origin=origin_of(Path.cwd()),
        is_sweep=True,
    )
    tracker = CarefulTracker(cls(run))
    tracker.log_params(
        params([job.config for job in sweep.jobs] or [config])
        | {f"swept.{key}": text for key, text in sweep.swept.items()}
    )
    return tracker


def params(configs: Sequence[RunConfig]) -> dict[str, str]:
    """Merges the jobs' parameters. A key gets the value that all jobs have in common, or else a JSON list of its
    distinct values."""
    together: dict[str, list[str]] = {}
    for config in configs:
        for key, value in flatten(used_params(config)).items():
            if key not in OWN_KEYS:
                together.setdefault(key, []).append(value)
    return {
        key: values[0] if len(values) == len(configs) and len(set(values)) == 1 else json.dumps(_distinct(values))
        for key, values in together.items()
    }


def log_objectives(tracker: Tracker, objectives: Sequence[float], goal: Goal | None) -> None:
    """Records all objectives in the order in which the jobs finished, each with the best objective so far, and tags the
    run with the goal. If the jobs have different kinds of objectives, `goal` is None and no best objective is
    recorded."""
    best: float | None = None
    if goal is not None:
        tracker.set_tags({OBJECTIVE_TAG: f"{goal.name}, {goal.direction}"})
    for number, objective in enumerate(objectives):
        if goal is not None and not math.isnan(objective):
            best = objective if best is None or goal.is_better(objective, best) else best
        tracker.log_metrics(number, {"sweep/objective": objective, "sweep/best_objective": best})


def _distinct(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(values))
