"""The examples of random models. Does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.fuzz.text import ROWS

BATCH = 4  # examples of a rank
Features = Mapping[str, tuple[tuple[int, ...], str]]
Batch = dict[str, np.ndarray]


def batch(features: Features, seed: int, step: int, rank: int) -> Batch:
    """Returns the examples of a rank in a step. Integers are ids, which repeat within and across ranks."""
    draw = np.random.default_rng([seed, step, rank])
    found = {}
    for name, (shape, dtype) in sorted(features.items()):
        size = (BATCH, *shape)
        if np.issubdtype(np.dtype(dtype), np.integer):
            values = draw.integers(0, ROWS, size)
        elif name == "weight":
            values = draw.uniform(0.5, 1.5, size)
        else:
            values = draw.normal(size=size)
        found[name] = values.astype(dtype)
    return found


def of_all_ranks(features: Features, seed: int, step: int, ranks: int, order: int = 0) -> Batch:
    """Returns the examples of all ranks of a step. `order` is the seed of their order; 0 keeps it."""
    parts = [batch(features, seed, step, rank) for rank in range(ranks)]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in features}
    if order == 0:
        return whole
    permuted = np.random.default_rng([order, step]).permutation(BATCH * ranks)
    return {name: array[permuted] for name, array in whole.items()}


def split(options: Mapping[str, object], values: Batch) -> tuple[Batch, object, np.ndarray | None]:
    """Splits examples as Keras takes them: inputs by name, labels, and the weights of examples."""
    labels, weight = options["labels"], options.get("sample_weight")
    given: object = values["y"] if labels == "y" else {output: values[name] for output, name in dict(labels).items()}
    inputs = {name: array for name, array in values.items() if name not in ("y", "z", "weight")}
    return inputs, given, None if weight is None else values[str(weight)]


def by_step(features: Features, seed: int, ranks: Sequence[int], order: int = 0) -> list[Batch]:
    """Returns the examples of all steps; `ranks` has the number of ranks of each."""
    return [of_all_ranks(features, seed, step, count, order) for step, count in enumerate(ranks)]
