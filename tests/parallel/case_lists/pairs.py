"""Cases that contain all pairs of options."""

from __future__ import annotations

import itertools
from typing import Any

from tests.parallel.cases import OPTIMIZERS, Case

AXES: dict[str, tuple[Any, ...]] = {
    "comm": ("mpi", "ps", "hybrid", "sharded"),
    "optimizer": tuple(OPTIMIZERS),
    "gradients": ("dense", "sparse", "both"),
    "clip": (False, True),
    "ranks": (2, 3),
    "partitions": (1, 4),
    "variables": ("resource", "reference"),
    "user_parts": (1, 3),
    "average_sparse": (True, False),
}


def pairwise(axes: dict[str, tuple[Any, ...]]) -> list[Case]:
    """Returns cases that contain every pair of values of any two axes, chosen greedily (Cohen and others 1997,
    AETG)."""
    names = list(axes)
    wanted = {
        ((first, a), (second, b))
        for first, second in itertools.combinations(names, 2)
        for a in axes[first]
        for b in axes[second]
    }
    cases = []
    while wanted:
        chosen = dict(min(wanted, key=repr))
        for name in names:
            if name not in chosen:
                gains = [len(_covered(chosen | {name: value}, wanted)) for value in axes[name]]
                chosen[name] = axes[name][gains.index(max(gains))]
        wanted -= _covered(chosen, wanted)
        cases.append(Case(**chosen))
    return cases


def _covered(chosen: dict[str, Any], wanted: set) -> set:
    return {pair for pair in wanted if all(name in chosen and chosen[name] == value for name, value in pair)}


def full_column() -> list[Case]:
    """Returns cases of hybrid on two ranks: every optimizer × kind of gradient × clipping, four partitions."""
    return [
        Case(optimizer=optimizer, gradients=gradients, clip=clip, partitions=4)
        for optimizer, gradients, clip in itertools.product(OPTIMIZERS, ("dense", "sparse", "both"), (False, True))
    ]
