"""Selects the points in a journal that belong to the checkpoint of a step."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow.logged_models import step_in
from parallax_runner.track.mlflow.store import Point

# Prefixes of the metrics that measure model quality.
QUALITY = ("train/", "validation/")


def quality(points: Iterable[Point]) -> list[Point]:
    """Returns the points that measure model quality. Points with non-finite values are omitted, since MLflow would
    store zero for them."""
    return [point for point in points if point.key.startswith(QUALITY) and math.isfinite(point.value)]


Datasets = dict[str, dict[str, str]]


def points_of_models(
    path: Path, points_of: Callable[[Mapping[str, Any]], list[Point]]
) -> Iterator[tuple[int, list[Point], Datasets]]:
    """Yields a tuple for each step that has a checkpoint in the journal. The tuple contains the step, the last point of
    each metric up to that step, and the datasets that were in use at that time.

    The last point can be earlier than the step, because a checkpoint can be written between two reports. `points_of`
    returns the points of an entry.
    """
    history: dict[str, list[Point]] = defaultdict(list)
    datasets: Datasets = {}
    models: dict[int, Datasets] = {}
    for entry, _ in journals.entries(path):
        if entry["kind"] == "metrics":
            for point in quality(points_of(entry)):
                history[point.key].append(point)
        elif entry["kind"] == "event" and (step := step_of(entry)) is not None:
            models.setdefault(step, dict(datasets))
        elif entry["kind"] == "dataset":
            datasets |= named(entry)
    for step, used in sorted(models.items()):
        yield step, _up_to(step, history), used


def step_of(entry: Mapping[str, Any]) -> int | None:
    """Returns the step of the checkpoint that an event sends, or None for other events."""
    return step_in(Path(entry["fields"]["folder"]).name) if entry.get("event") == "checkpoint" else None


def named(entry: Mapping[str, Any]) -> Datasets:
    """Returns a dict that maps the context of an entry's dataset to the dataset's name and digest."""
    return {entry["context"]: {"name": entry["name"], "digest": entry["digest"]}}


def datasets_before(path: Path, offset: int) -> Datasets:
    """Returns the last dataset of each context before a position in the journal."""
    found: Datasets = {}
    for entry, end in journals.entries(path):
        if end > offset:
            break
        if entry["kind"] == "dataset":
            found |= named(entry)
    return found


def _up_to(step: int, history: Mapping[str, list[Point]]) -> list[Point]:
    found = []
    for points in history.values():
        number = bisect.bisect_right(points, step, key=lambda point: point.step)
        if number:
            found.append(points[number - 1])
    return found
