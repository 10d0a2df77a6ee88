"""Runs an experiment in a mode, and reads the curve of its metric from MLflow."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from benchmarks.results.experiments import Experiment
from benchmarks.runs import Run


@dataclass(frozen=True)
class Point:
    """The value of the metric after `step` steps, `secs` after the first step."""

    step: int
    secs: float
    value: float


@dataclass(frozen=True)
class Curve:
    """The points of a mode. `examples_per_sec` excludes validations."""

    mode: str
    points: tuple[Point, ...]
    examples_per_sec: float

    def as_json(self) -> dict[str, Any]:
        """Returns the curve as JSON values."""
        return asdict(self)


def measure(experiment: Experiment, mode: str, data: Path, files: Path, folder: Path) -> Curve:
    """Trains and returns the curve. Raises RunFailed if the run fails."""
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    more = [f"tracking.uri={uri}", "tracking.log_checkpoints=none", f"data.cache_dir={folder / 'cache'}"]
    with Run(folder / mode, [*experiment.overrides(mode, data, files), *more], cwd=folder) as run:
        summary = run.wait()
    client = MlflowClient(uri)
    run_id = summary["mlflow_run_id"]
    started = min(point.timestamp for point in client.get_metric_history(run_id, "train/loss"))
    found = sorted(client.get_metric_history(run_id, experiment.recorded), key=lambda point: point.step)
    points = tuple(
        Point(point.step, (point.timestamp - started) / 1000, experiment.converted(point.value)) for point in found
    )
    return Curve(mode, points, summary["examples_per_sec"])


def largest_difference(curves: list[Curve]) -> float:
    """Returns the largest relative difference between a mode and the first one after the same step."""
    first = {point.step: point.value for point in curves[0].points}
    differences = [
        abs(point.value - first[point.step]) / abs(first[point.step]) for curve in curves[1:] for point in curve.points
    ]
    return max(differences, default=math.nan)
