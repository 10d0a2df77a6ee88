"""Random numbers that are a function of a key and a number: any example can be drawn without those before it."""

from __future__ import annotations

import numpy as np

# SplitMix64 (Steele, Lea and Flood, 2014): the number is the counter, the rest mixes its bits.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


def keys(seed: int, *, count: int) -> list[np.uint64]:
    """Return keys of independent streams of random numbers; the seed decides them."""
    return list(np.random.SeedSequence(seed).generate_state(count, np.uint64))


def uniform(key: np.uint64, numbers: np.ndarray) -> np.ndarray:
    """Return float64 in [0, 1) of the shape of `numbers` (integers); equal numbers get equal draws."""
    bits = numbers.astype(np.uint64) * _STEP + key  # arrays of uint64 wrap
    for shift, factor in _MIX:
        bits = (bits ^ (bits >> shift)) * factor
    bits ^= bits >> np.uint64(31)
    draws: np.ndarray = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return draws


def columns(numbers: np.ndarray, count: int) -> np.ndarray:
    """Return `count` numbers for each of `numbers`, int64 [*numbers.shape, count], all distinct."""
    numbered: np.ndarray = numbers[..., None] * count + np.arange(count, dtype=np.int64)
    return numbered


def log_uniform(draws: np.ndarray, size: np.ndarray | int) -> np.ndarray:
    """Turn uniform draws into int64 ids below `size`, which broadcasts.

    Id r, from 0, has probability log((r + 2) / (r + 1)) / log(size + 1): Zipf's law, nearly.
    """
    top = np.asarray(size, dtype=np.int64)
    drawn = np.expm1(draws * np.log1p(top.astype(np.float64))).astype(np.int64)
    ids: np.ndarray = np.minimum(drawn, top - 1)  # rounding may reach the end of the range
    return ids


def log_uniform_probabilities(size: int) -> np.ndarray:
    """Return the probability of each id that `log_uniform` draws, float64 [size]."""
    edges = np.log1p(np.arange(size + 1, dtype=np.float64))
    probabilities: np.ndarray = np.diff(edges) / edges[-1]
    return probabilities
