"""Halves of a batch of real examples, and a batch whose examples have more zeros in one half than in the other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from parallax_runner.graph.components import Specs, components, feature_of, rows

# Arrays by component name (`data.dataset.Feature`).
Batch = Mapping[str, np.ndarray]
# A batch and its two halves.
Halved = tuple[Batch, Batch, Batch]
# Parts of the numbers that become 0, in the first and in the second half of a batch.
FEW, MANY = 0.2, 0.7


def part(batch: Batch, features: Specs, start: int, stop: int) -> Batch:
    """Returns examples [start, stop) of a batch with dense, ragged and sparse features."""
    found: dict[str, np.ndarray] = {}
    for name, spec in features.items():
        inner = feature_of(spec).components
        if not inner:
            found[name] = batch[name][start:stop]
            continue
        flat = [tf.constant(batch[f"{name}/{component}"]) for component in inner]
        whole = tf.nest.pack_sequence_as(spec, flat, expand_composites=True)
        taken = components(name, rows(whole, start, stop))
        found |= {component: tensor.numpy() for component, tensor in taken.items()}
    return found


def halved(batch: Batch, features: Specs, size: int) -> Halved:
    """Returns the first `size` examples of a batch, and the two halves of these."""
    half = size // 2
    return part(batch, features, 0, size), part(batch, features, 0, half), part(batch, features, half, size)


def with_zeros(batch: Batch, features: Specs) -> Batch:
    """Returns a batch in which some numbers are 0 and some strings are empty, few in the first half and many in the
    second half.

    A mean over examples stays a mean for any numbers. A loss that divides by a count, such as the number of words that
    are not padding, can look like a mean for a batch in which all examples have the same count.
    """
    draw = np.random.default_rng(1)
    found = dict(batch)
    for name, spec in features.items():
        inner = feature_of(spec).components
        component = f"{name}/values" if inner else name
        array = batch[component]
        if array.dtype.kind not in "biufO":
            continue
        is_late = np.arange(len(array)) >= len(array) / 2
        share = np.where(is_late, MANY, FEW).reshape(-1, *[1] * (array.ndim - 1))
        found[component] = np.where(draw.random(array.shape) < share, _nothing_like(array), array)
    return found


def _nothing_like(array: np.ndarray) -> np.ndarray:
    """Returns zeros or, for an array of strings, empty strings, which often stand for padding."""
    return np.full_like(array, b"") if array.dtype.kind == "O" else np.zeros_like(array)
