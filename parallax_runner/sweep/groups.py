"""Groups the jobs of a sweep by the values of the swept keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_runner.sweep.results import Result

SEED = "train.seed"


@dataclass(frozen=True)
class Group:
    """Jobs that share the overrides in `name`, such as `comm=mpi`, in ranking order. `name` is '' if the jobs share no
    overrides."""

    name: str
    results: tuple[Result, ...]


def grouped(results: Sequence[Result]) -> list[Group]:
    """Returns the groups, ordered by their best jobs.

    Jobs that differ only in their seed form a group. In a sweep over several keys without the seed, jobs with the same
    value for the first key form a group. All jobs of a sweep over a single key form one group.
    """
    values = [dict(override.partition("=")[::2] for override in one.overrides) for one in results]
    swept = [
        key for key in dict.fromkeys(key for one in values for key in one) if len({v.get(key) for v in values}) > 1
    ]
    without_seed = [key for key in swept if key != SEED]
    several = without_seed if SEED in swept else swept[:1]
    shared = several if len(swept) > 1 else []
    found: dict[str, list[Result]] = {}
    for one, own in zip(results, values, strict=True):
        found.setdefault(" ".join(f"{key}={own[key]}" for key in shared if key in own), []).append(one)
    return [Group(name, tuple(jobs)) for name, jobs in found.items()]
