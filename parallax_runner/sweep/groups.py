"""Groups the jobs of a sweep by the values of the swept keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    shared = _shared_keys(_swept_keys(values))
    found: dict[str, list[Result]] = {}
    for one, own in zip(results, values, strict=True):
        name = " ".join(f"{key}={own[key]}" for key in shared if key in own)
        found.setdefault(name, []).append(one)
    return [Group(name, tuple(jobs)) for name, jobs in found.items()]


def _swept_keys(values: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns the keys whose values differ between jobs. `values` has the keys and values of each job."""
    keys = dict.fromkeys(key for one in values for key in one)
    return [key for key in keys if len({one.get(key) for one in values}) > 1]


def _shared_keys(swept: Sequence[str]) -> Sequence[str]:
    """Returns the keys whose values the jobs of a group share."""
    if len(swept) <= 1:
        return []
    if SEED in swept:
        return [key for key in swept if key != SEED]
    return swept[:1]
