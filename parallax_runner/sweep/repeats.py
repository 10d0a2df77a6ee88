"""The mean and the spread of the objective over jobs that repeat a training with other seeds, folds or days."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parallax_runner.sweep.results import Result

# Jobs that differ only in these keys, or in keys below them, repeat a training.
REPEATING = ("train.seed", "data.seed", "data.partition")


@dataclass(frozen=True)
class Repeats:
    """Jobs with the same `overrides` apart from repeating keys. `standard_deviation` is that of the sample."""

    overrides: tuple[str, ...]
    jobs: int
    mean: float
    standard_deviation: float


def repeats(results: Sequence[Result]) -> list[Repeats]:
    """Returns the groups of at least two ranked jobs that repeat a training, in the order of their best jobs."""
    groups: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for one in results:
        if one.rank is not None and one.objective is not None:
            groups[tuple(filter(_is_of_group, one.overrides))].append(one.objective)
    return [
        Repeats(overrides, len(found), statistics.fmean(found), statistics.stdev(found))
        for overrides, found in groups.items()
        if len(found) > 1
    ]


def described(found: Sequence[Repeats], objective: str) -> list[str]:
    """Returns a line for each group. A line names the overrides in which the groups differ."""
    shared = set.intersection(*(set(one.overrides) for one in found)) if found else set()
    lines = []
    for one in found:
        own = " ".join(word for word in one.overrides if word not in shared)
        prefix = f"{own}: " if own else ""
        spread = f"standard deviation {one.standard_deviation:.2g}"
        lines.append(f"{prefix}mean {objective} of {one.jobs} jobs: {one.mean:.5g}, {spread}")
    return lines


def as_json(found: Sequence[Repeats]) -> list[dict[str, Any]]:
    """Returns the groups as `results.json` stores them."""
    return [asdict(one) for one in found]


def _is_of_group(override: str) -> bool:
    key = override.lstrip("+").partition("=")[0]
    return not any(key == one or key.startswith(f"{one}.") for one in REPEATING)
