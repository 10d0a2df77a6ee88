"""Runs an experiment in a mode, and reads the curve of its metric."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from benchmarks.results.experiment import Experiment
from benchmarks.runs import Run


@dataclass(frozen=True)
class Point:
    """The value of the metric after `step` steps. `secs` is the time since the first report, with validations."""

    step: int
    secs: float
    value: float


@dataclass(frozen=True)
class Curve:
    """The points of a run. `examples_per_sec` excludes validations. `load_average` is that of the minute before."""

    mode: str
    round: int
    points: tuple[Point, ...]
    examples_per_sec: float
    load_average: float

    def as_json(self) -> dict[str, Any]:
        """Returns the curve as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Places:
    """The given data, the folder of files made of it, and the folder for the runs."""

    data: Path
    files: Path
    folder: Path


def measure(experiment: Experiment, mode: str, number: int, places: Places) -> Curve:
    """Trains, and returns the curve of this round. Raises RunFailed if the run fails."""
    load_average = os.getloadavg()[0]
    uri = f"sqlite:///{places.folder / 'mlflow.db'}"
    own = [f"tracking.uri={uri}", "tracking.log_checkpoints=none"]
    overrides = [*experiment.overrides(mode, places.data, places.files), *own]
    with Run(places.folder / f"{mode}-{number}", overrides, cwd=places.folder) as run:
        summary = run.wait()
    client = MlflowClient(uri)
    history = client.get_metric_history(summary["mlflow_run_id"], experiment.recorded)
    begun = min(one.timestamp for one in client.get_metric_history(summary["mlflow_run_id"], "train/loss"))
    secs = {one.step: (one.timestamp - begun) / 1000 for one in history}
    values = experiment.values(run.run_dir, places.files, {one.step: one.value for one in history})
    points = tuple(Point(step, secs[step], value) for step, value in sorted(values.items()))
    return Curve(mode, number, points, summary["examples_per_sec"], load_average)


def difference_from(reference: Curve, curves: Sequence[Curve]) -> float:
    """Returns the largest difference between the curves and the reference after the same step, relative to the
    reference. It is infinite where only the reference is 0. Raises ValueError if the curves have other steps."""
    expected = {point.step: point.value for point in reference.points}
    for curve in curves:
        if {point.step for point in curve.points} != set(expected):
            raise ValueError(f"{curve.mode}, round {curve.round}: expected the steps {sorted(expected)}")
    return max(_relative(point.value, expected[point.step]) for curve in curves for point in curve.points)


def _relative(value: float, expected: float) -> float:
    """Returns the relative difference of a value from the expected one."""
    if value == expected:
        return 0.0
    return abs(value - expected) / abs(expected) if expected else math.inf
