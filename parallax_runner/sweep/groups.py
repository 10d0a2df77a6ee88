"""Groups the jobs of a sweep by what was swept over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_runner.sweep.results import Result

SEED = "train.seed"


@dataclass(frozen=True)
class Group:
    """Jobs that have `name` in common, such as `comm=mpi`, in the order of their ranks; '' where nothing is shared."""

    name: str
    results: tuple[Result, ...]


def grouped(results: Sequence[Result]) -> list[Group]:
    """Groups in the order of their best jobs.

    Jobs that differ in their seeds alone are a group. Of a sweep over several keys without seeds, those that agree in
    the key that was typed first are one. A sweep over one key is one group.
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
