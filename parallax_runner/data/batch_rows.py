"""Makes batches of chosen examples of other batches, with features of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from parallax_runner.data.dataset import Feature

Batch = dict[str, np.ndarray]
Features = Mapping[str, Feature]


def taken(batch: Batch, features: Features, rows: Sequence[int]) -> Batch:
    """Returns a batch of the examples `rows` of a batch, in this order. An example can occur several times."""
    found: Batch = {}
    for name, feature in features.items():
        if feature.kind == "ragged":
            found |= _taken_ragged(batch, name, feature, np.asarray(rows))
        elif feature.kind == "sparse":
            found |= _taken_sparse(batch, name, np.asarray(rows))
        else:
            found[name] = np.take(batch[name], rows, axis=0)
    return found


def joined(batch: Batch, more: Batch, features: Features) -> Batch:
    """Returns a batch of the examples of both. Dense examples of `more` are repeated or cut until they have the shape
    of those in `batch`."""
    found: Batch = {}
    for name, feature in features.items():
        if feature.kind == "ragged":
            found |= _joined_ragged(batch, more, name, feature)
        elif feature.kind == "sparse":
            found |= _joined_sparse(batch, more, name)
        else:
            found[name] = _joined_dense(batch[name], more[name])
    return found


def _taken_ragged(batch: Batch, name: str, feature: Feature, rows: np.ndarray) -> Batch:
    """Each row of a level of splits is a range of rows of the next level, and at last of values."""
    values, *levels = [f"{name}/{component}" for component in feature.components]
    found: Batch = {}
    for level in levels:
        splits = batch[level]
        starts = splits[rows]
        sizes = splits[rows + 1] - starts
        found[level] = np.concatenate([[0], np.cumsum(sizes)]).astype(splits.dtype)
        rows = _ranges(starts, sizes)
    found[values] = np.take(batch[values], rows, axis=0)
    return found


def _ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns the numbers of all ranges, one after the other."""
    ends = np.cumsum(sizes)
    shifts = np.repeat(starts - (ends - sizes), sizes)
    numbers: np.ndarray = np.arange(sizes.sum()) + shifts
    return numbers


def _taken_sparse(batch: Batch, name: str, rows: np.ndarray) -> Batch:
    indices, values, shape = (batch[f"{name}/{component}"] for component in ("indices", "values", "dense_shape"))
    order = np.argsort(indices[:, 0], kind="stable")
    examples = indices[order, 0]
    starts = np.searchsorted(examples, rows, side="left")
    sizes = np.searchsorted(examples, rows, side="right") - starts
    chosen = order[_ranges(starts, sizes)]
    own = np.repeat(np.arange(len(rows)), sizes)
    return {
        f"{name}/indices": np.concatenate([own[:, None], indices[chosen, 1:]], axis=1).astype(indices.dtype),
        f"{name}/values": values[chosen],
        f"{name}/dense_shape": np.concatenate([[len(rows)], shape[1:]]).astype(shape.dtype),
    }


def _joined_dense(array: np.ndarray, more: np.ndarray) -> np.ndarray:
    like = array.shape[1:]
    if more.shape[1:] == like:
        return np.concatenate([array, more])
    fitted = [np.resize(example, like) for example in more]
    return np.concatenate([array, np.stack(fitted)])


def _joined_ragged(batch: Batch, more: Batch, name: str, feature: Feature) -> Batch:
    values, *levels = [f"{name}/{component}" for component in feature.components]
    found = {values: np.concatenate([batch[values], more[values]])}
    for level in levels:
        first, second = batch[level], more[level]
        found[level] = np.concatenate([first, second[1:] + first[-1]])
    return found


def _joined_sparse(batch: Batch, more: Batch, name: str) -> Batch:
    indices, values, shape = (f"{name}/{component}" for component in ("indices", "values", "dense_shape"))
    moved = more[indices].copy()
    moved[:, 0] += batch[shape][0]
    largest = np.maximum(batch[shape], more[shape])
    largest[0] = batch[shape][0] + more[shape][0]
    return {
        indices: np.concatenate([batch[indices], moved]),
        values: np.concatenate([batch[values], more[values]]),
        shape: largest,
    }
