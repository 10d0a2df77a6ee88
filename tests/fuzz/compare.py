"""Compares variables of two runs. Differences that the reference itself shows are noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]
# The largest difference by rounding, relative to a variable's largest element, by the size of its dtype in bytes.
TOLERANCE = {8: 1e-9, 4: 1e-4, 2: 1e-2}
# A difference is noise if the reference with its examples in another order differs by at least this part of it.
NOISE_SHARE = 0.1


@dataclass(frozen=True)
class Difference:
    """Where a variable of a run differs most from the reference. `size` is the absolute difference."""

    name: str
    size: float
    text: str


def differences(run: Arrays, plain: Arrays) -> dict[str, np.ndarray]:
    """Returns the elements that differ by more than rounding, by variable. Arrays of different shapes differ
    everywhere.

    The values are absolute differences; 0 stands for elements that are equal.
    """
    found = {}
    for name, expected in plain.items():
        if name not in run:
            continue
        if run[name].shape != expected.shape or run[name].dtype != expected.dtype:
            found[name] = np.full(expected.shape, np.inf)
            continue
        apart = _apart(run[name], expected)
        limit = _limit(expected, run[name])
        if (apart > limit).any():
            found[name] = np.where(apart > limit, apart, 0.0)
    return found


def without_noise(found: Mapping[str, np.ndarray], plain: Arrays, others: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Returns the differences that are not noise. `others` are results of the reference with its examples in other
    orders, which is the same but for rounding.

    A gradient that is zero but for rounding differs between two orders as much as between a run and the reference, if
    an optimizer divides it by its own size.
    """
    remaining = {}
    for name, apart in found.items():
        noise = np.max([_apart(other[name], plain[name]) for other in others], axis=0)
        unexplained = np.where(noise >= NOISE_SHARE * apart, 0.0, apart)
        if unexplained.any():
            remaining[name] = unexplained
    return remaining


def largest(found: Mapping[str, np.ndarray], run: Arrays, plain: Arrays) -> Difference:
    """Returns the largest of these differences."""
    name = max(found, key=lambda name: float(found[name].max()))
    size = float(found[name].max())
    if run[name].shape != plain[name].shape or run[name].dtype != plain[name].dtype:
        kinds = [f"{one.dtype}{list(one.shape)}" for one in (run[name], plain[name])]
        return Difference(name, size, f"«{name}» is {kinds[0]}, expected {kinds[1]}")
    index = np.unravel_index(int(found[name].argmax()), found[name].shape)
    at = [int(one) for one in index]
    text = f"«{name}»{at} is {run[name][index]}, expected {plain[name][index]}: {size:.2g} off"
    return Difference(name, size, f"{text} ({len(found)} of {len(plain)} variables)")


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns absolute differences, infinite where only one of both is finite."""
    first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(first - second)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def _limit(one: np.ndarray, other: np.ndarray) -> float:
    if one.dtype.kind != "f":
        return 0.0
    scale = [float(np.max(np.abs(each[np.isfinite(each)]), initial=0.0)) for each in (one, other)]
    return TOLERANCE[one.dtype.itemsize] * max(*scale, 1e-3)
