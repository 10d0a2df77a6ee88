"""Clips gradients before an optimizer uses them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import tensorflow.compat.v1 as tf

from parallax_runner.config.schema import UpdateConfig

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


def clips(update: UpdateConfig) -> bool:
    """Returns whether the configuration clips gradients."""
    return any(one is not None for one in (update.clip_norm, update.clip_value, update.global_clip_norm))


def clipped(gradients: Sequence[Gradient], variables: Sequence[tf.Variable], update: UpdateConfig) -> list[Gradient]:
    """Returns the clipped gradients. Rows of a sparse gradient with the same id are added up before, because a norm or
    a limit is that of the whole gradient."""
    merged = [_merged(gradient) for gradient in gradients]
    if update.clip_value is not None:
        return [_clipped_by_value(gradient, update.clip_value) for gradient in merged]
    if update.global_clip_norm is not None:
        return list(tf.clip_by_global_norm(merged, update.global_clip_norm)[0])
    assert update.clip_norm is not None
    results = list(merged)
    for places in _by_whole_variable(variables):
        of_variable, _ = tf.clip_by_global_norm([merged[place] for place in places], update.clip_norm)
        for place, gradient in zip(places, of_variable, strict=True):
            results[place] = gradient
    return results


def _merged(gradient: Gradient) -> Gradient:
    """Adds up the rows with the same id. These are the ops of TensorFlow's own optimizers, which rewriting removes,
    because it merges the rows of all ranks itself."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    ids, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.shape(ids)[0])
    return tf.IndexedSlices(values, ids, gradient.dense_shape)


def _clipped_by_value(gradient: Gradient, limit: float) -> Gradient:
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.clip_by_value(gradient, -limit, limit)
    values = tf.clip_by_value(gradient.values, -limit, limit)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def _by_whole_variable(variables: Sequence[tf.Variable]) -> list[list[int]]:
    """Returns the places of the variables, in one list for each variable. The pieces of a partitioned variable are one
    variable."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, variable in enumerate(variables):
        piece = variable._get_save_slice_info()
        places[variable.op.name if piece is None else piece.full_name].append(place)
    return list(places.values())
