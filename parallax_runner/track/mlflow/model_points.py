"""Selects the points in a journal that measure the model of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow.store import Point

# Prefixes of the metrics that measure model quality.
TRAINING, VALIDATION = "train/", "validation/"


class DatasetId(NamedTuple):
    """What identifies a dataset in MLflow."""

    name: str
    digest: str


class ModelPoint(NamedTuple):
    """A point, and the dataset on which it was measured, or None if the journal names no dataset."""

    point: Point
    dataset: DatasetId | None


def points_of_model(journal: Path, step: int) -> list[ModelPoint]:
    """Returns the last point of each metric of model quality up to a step.

    The last point can be earlier than the step, because a checkpoint can be written between two reports.
    """
    last: dict[str, ModelPoint] = {}
    datasets: dict[str, DatasetId] = {}
    for entry, _ in journals.entries(journal):
        if entry["kind"] == "dataset":
            datasets[entry["context"]] = DatasetId(entry["name"], entry["digest"])
        elif entry["kind"] == "metrics" and entry["step"] <= step:
            last |= {point.key: ModelPoint(point, datasets.get(_context(point))) for point in _of_quality(entry)}
    return list(last.values())


def _of_quality(entry: Mapping[str, Any]) -> Iterator[Point]:
    """Yields the points of an entry that measure model quality. Points with non-finite values are omitted, since MLflow
    would store zero for them."""
    for key, value in entry["metrics"].items():
        if key.startswith((TRAINING, VALIDATION)) and math.isfinite(float(value)):
            yield Point(key, float(value), entry["time_ms"], entry["step"])


def _context(point: Point) -> str:
    return "validation" if point.key.startswith(VALIDATION) else "training"
