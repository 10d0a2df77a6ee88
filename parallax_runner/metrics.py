"""Metrics that a model function or a training step can return: `{"metrics": {"auc": metrics.auc(labels, logits)}}`.

Each metric is computed from sums over examples, so its value is exact over all batches and ranks. No metric is
an average of per-batch values. Optional weights are non-negative numbers, one for each value or example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.config.objective import Direction
from parallax_runner.graph.metric import Metric, Result

__all__ = ["accuracy", "auc", "log_loss", "mean", "perplexity", "precision_at_k", "recall_at_k", "rmse"]


def mean(values: Any, weights: Any = None, *, direction: Direction | None = None) -> Metric:
    """Returns the weighted mean of `values`, which are numbers of any shape. `weights` must have the
    same shape, or be broadcastable to it.

    `direction` is "minimize" or "maximize". A mean that serves as an objective needs a direction.
    """
    return _ratio(values, weights, _quotient, direction)


def accuracy(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    """Returns the fraction of examples whose class is predicted correctly.

    `labels`: integers or booleans [...]. `predictions`: either classes with the shape of `labels`, or floating-point
    scores [..., classes]. The class with the largest score is the predicted class.
    """
    labels, predictions = tf.convert_to_tensor(labels), tf.convert_to_tensor(predictions)
    if predictions.dtype.is_floating and predictions.shape.rank == (labels.shape.rank or 0) + 1:
        predictions = tf.argmax(predictions, axis=-1, output_type=tf.int64)
    hits = tf.equal(tf.cast(labels, tf.int64), tf.cast(predictions, tf.int64))
    return _ratio(hits, weights, _quotient, "maximize")


def auc(labels: Any, predictions: Any, weights: Any = None, *, from_logits: bool = False, bins: int = 199) -> Metric:
    """Returns the area under the ROC curve, computed by the trapezoidal rule over `bins` + 1 equidistant thresholds.

    `labels`: 0 or 1. `predictions`: probabilities, or logits if `from_logits` is True. Both have the same number of
    elements. With `bins=199`, the thresholds and the value are the same as in `keras.metrics.AUC()`.
    """
    positive = _column(labels)
    probability = _column(predictions)
    if from_logits:
        probability = tf.sigmoid(probability)
    weight = tf.ones_like(positive) if weights is None else tf.broadcast_to(_column(weights), tf.shape(positive))
    # An example in bin b is treated as above the thresholds 0 … b. Even an example with probability 0 is treated as
    # above the first threshold.
    bin_number = tf.clip_by_value(tf.cast(tf.math.ceil(probability * bins), tf.int32) - 1, 0, bins - 1)
    histograms = [
        tf.math.unsorted_segment_sum(weight * share, bin_number, bins) for share in (positive, 1.0 - positive)
    ]
    return Metric(tuple(histograms), _area, "maximize")


def log_loss(labels: Any, predictions: Any, weights: Any = None, *, from_logits: bool = False) -> Metric:
    """Returns the mean binary cross entropy in nats. `labels`: numbers from 0 to 1. `predictions`: probabilities, or
    logits if `from_logits` is True."""
    positive, given = _column(labels), _column(predictions)
    if from_logits:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=positive, logits=given)
    else:
        probability = tf.clip_by_value(given, 1e-7, 1.0 - 1e-7)
        losses = -(positive * tf.math.log(probability) + (1.0 - positive) * tf.math.log(1.0 - probability))
    return _ratio(losses, None if weights is None else _column(weights), _quotient, "minimize")


def rmse(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    """Returns the square root of the mean squared error. `labels` and `predictions` are numbers of the same shape."""
    errors = tf.cast(labels, tf.float32) - tf.cast(predictions, tf.float32)
    return _ratio(tf.square(errors), weights, lambda sums: math.sqrt(_quotient(sums)), "minimize")


def perplexity(losses: Any, weights: Any = None) -> Metric:
    """Returns the exponential of the weighted mean of `losses`, which are in nats per word. Give padding a weight of
    0."""
    # The exponential of a number above about 709 overflows a double. A model with such a mean loss has learned nothing,
    # so the limit does no harm.
    return _ratio(losses, weights, lambda sums: math.exp(min(_quotient(sums), 700.0)), "minimize")


def precision_at_k(labels: Any, scores: Any, k: int) -> Metric:
    """Returns the fraction of the `k` highest-scored items that are relevant, averaged over examples.

    `labels`: int [batch] or [batch, most], the distinct indices of the relevant items. `most` is the largest number of
    relevant items; shorter rows are padded with -1.
    `scores`: floating point [batch, items].
    """
    hits, _ = _hits(labels, scores, k)
    return _ratio(hits / k, None, _quotient, "maximize")


def recall_at_k(labels: Any, scores: Any, k: int) -> Metric:
    """Returns the fraction of the relevant items that are among the `k` highest-scored items, averaged over examples
    with at least one relevant item.

    The arguments are the same as for `precision_at_k`.
    """
    hits, relevant = _hits(labels, scores, k)
    has_one = tf.cast(relevant > 0, tf.float32)
    return _ratio(hits / tf.maximum(relevant, 1.0), has_one, _quotient, "maximize")


def _hits(labels: Any, scores: Any, k: int) -> tuple[Any, Any]:
    """Returns two float32 tensors [batch]: the number of relevant items among the first k items, and the total number
    of relevant items."""
    labels = tf.convert_to_tensor(labels)
    if labels.shape.rank == 1:
        labels = labels[:, tf.newaxis]
    first = tf.cast(tf.nn.top_k(scores, k).indices, labels.dtype)
    found = tf.equal(labels[:, :, tf.newaxis], first[:, tf.newaxis, :])
    return tf.reduce_sum(tf.cast(found, tf.float32), axis=[1, 2]), tf.reduce_sum(tf.cast(labels >= 0, tf.float32), 1)


def _ratio(values: Any, weights: Any, result: Result, direction: Direction | None) -> Metric:
    values = tf.cast(values, tf.float32)
    if weights is None:
        return Metric((tf.reduce_sum(values), tf.cast(tf.size(values), tf.float32)), result, direction)
    weights = tf.broadcast_to(tf.cast(weights, tf.float32), tf.shape(values))
    return Metric((tf.reduce_sum(values * weights), tf.reduce_sum(weights)), result, direction)


def _column(values: Any) -> Any:
    return tf.reshape(tf.cast(values, tf.float32), [-1])


def _quotient(sums: Sequence[Any]) -> float:
    total, count = sums
    return float(total) / float(count) if count else math.nan


def _area(sums: Sequence[Any]) -> float:
    """Computes the area from the histograms of positive and negative examples over bins of equal width in [0, 1]."""
    above = [np.append(np.cumsum(np.asarray(one, np.float64)[::-1])[::-1], 0.0) for one in sums]
    positive, negative = (one / one[0] if one[0] else np.full_like(one, np.nan) for one in above)
    return float(np.trapezoid(positive[::-1], negative[::-1]))
