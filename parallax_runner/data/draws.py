"""Random numbers that depend only on a key and a counter, so any example can be generated without generating the ones
before it."""

from __future__ import annotations

import numpy as np

# The algorithm is SplitMix64 (Steele, Lea and Flood, 2014), with each element of `numbers` as its counter.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


def keys(seed: int, *, count: int) -> list[np.uint64]:
    """Returns `count` keys for independent streams of random numbers, derived from the seed."""
    return list(np.random.SeedSequence(seed).generate_state(count, np.uint64))


def uniform(key: np.uint64, numbers: np.ndarray) -> np.ndarray:
    """Returns float64 random numbers in [0, 1) with the shape of `numbers` (integers). Identical elements of `numbers`
    give identical results."""
    bits = numbers.astype(np.uint64) * _STEP + key  # uint64 arrays wrap around on overflow
    for shift, factor in _MIX:
        bits = (bits ^ (bits >> shift)) * factor
    bits ^= bits >> np.uint64(31)
    draws: np.ndarray = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return draws


def columns(numbers: np.ndarray, count: int) -> np.ndarray:
    """Returns `count` distinct numbers for each element of `numbers`, int64 [*numbers.shape, count]. Different elements
    never share a number."""
    numbered: np.ndarray = numbers[..., None] * count + np.arange(count, dtype=np.int64)
    return numbered


def log_uniform(draws: np.ndarray, size: np.ndarray | int) -> np.ndarray:
    """Converts `draws`, which are uniform in [0, 1), into int64 ids below `size`. `size` is broadcast to the shape of
    `draws`.

    Id r, counted from 0, has probability log((r + 2) / (r + 1)) / log(size + 1), which approximates Zipf's law.
    """
    top = np.asarray(size, dtype=np.int64)
    drawn = np.expm1(draws * np.log1p(top.astype(np.float64))).astype(np.int64)
    ids: np.ndarray = np.minimum(drawn, top - 1)  # rounding can produce `size` itself
    return ids


def log_uniform_probabilities(size: int) -> np.ndarray:
    """Returns the probability with which `log_uniform` draws each id, float64 [size]."""
    edges = np.log1p(np.arange(size + 1, dtype=np.float64))
    probabilities: np.ndarray = np.diff(edges) / edges[-1]
    return probabilities
