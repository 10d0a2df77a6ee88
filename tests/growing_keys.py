"""SplitMix64 in plain Python, and keys for tests of vocabularies that grow."""

from __future__ import annotations

from typing import Any

import numpy as np

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def mixed(number: Any) -> Any:
    """Returns the output function of SplitMix64 for a number, or for an array of uint64."""
    number = number & MASK
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return number ^ number >> 31


def bucket_of(key: int) -> int:
    """Returns the bucket of a key among 1,024."""
    bucket: int = mixed(key) % 1024
    return bucket


def initial_row(key: int, *, seed: int, columns: int, scale: float) -> np.ndarray:
    """Returns the initial row of a key (float32)."""
    start = (key + mixed(seed)) & MASK
    numbers = [mixed(mixed(start) + GAMMA * column) >> 40 for column in range(1, columns + 1)]
    fractions = np.array(numbers, np.float32) * np.float32(2.0**-24)
    return (np.float32(2) * fractions - np.float32(1)) * np.float32(scale)


def keys_of_bucket(bucket: int, count: int, first: int = 0) -> list[int]:
    """Returns the `count` smallest keys of a bucket that are at least `first`."""
    found: list[int] = []
    key = first
    while len(found) < count:
        if bucket_of(key) == bucket:
            found.append(key)
        key += 1
    return found
