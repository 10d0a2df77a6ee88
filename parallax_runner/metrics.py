"""Metrics that a model's function or a training step returns: `{"metrics": {"auc": metrics.auc(labels, logits)}}`.

Each is made of sums over examples, so it is exact over all batches and ranks: none is a mean of the batches' values.
Weights, where they are given, are one a value or example, not negative.
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
    """The mean of `values`, numbers of any shape, each counted `weights` times (of the same shape, or one that
    broadcasts to it).

    `direction` is «minimize» or «maximize»: a mean that is an objective needs it.
    """
    return _ratio(values, weights, _quotient, direction)


def accuracy(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    """The share of examples whose class is predicted.

    `labels`: integers or booleans [...]. `predictions`: of floating point with one more dimension, they are scores of
    classes, of which the largest counts; otherwise they are classes, of the shape of `labels`.
    """
    labels, predictions = tf.convert_to_tensor(labels), tf.convert_to_tensor(predictions)
    if predictions.dtype.is_floating and predictions.shape.rank == (labels.shape.rank or 0) + 1:
        predictions = tf.argmax(predictions, axis=-1, output_type=tf.int64)
    hits = tf.equal(tf.cast(labels, tf.int64), tf.cast(predictions, tf.int64))
    return _ratio(hits, weights, _quotient, "maximize")


def auc(labels: Any, predictions: Any, weights: Any = None, *, from_logits: bool = False, bins: int = 199) -> Metric:
    """The area under the ROC curve, by the trapezoidal rule over `bins` + 1 thresholds at equal distances.

    `labels`: 0 or 1, `predictions`: probabilities, or logits, both of the same number of elements. With `bins` 199 the
    thresholds, and so the value, are those of `keras.metrics.AUC()`.
    """
    positive = _column(labels)
    probability = _column(predictions)
    if from_logits:
        probability = tf.sigmoid(probability)
    weight = tf.ones_like(positive) if weights is None else tf.broadcast_to(_column(weights), tf.shape(positive))
    # An example in bin b is above the thresholds 0 … b of bins equal parts, as one of probability 0 is above the first.
    bin_number = tf.clip_by_value(tf.cast(tf.math.ceil(probability * bins), tf.int32) - 1, 0, bins - 1)
    histograms = [
        tf.math.unsorted_segment_sum(weight * share, bin_number, bins) for share in (positive, 1.0 - positive)
    ]
    return Metric(tuple(histograms), _area, "maximize")


def log_loss(labels: Any, predictions: Any, weights: Any = None, *, from_logits: bool = False) -> Metric:
    """The mean binary cross entropy, in nats. `labels`: 0 to 1, `predictions`: probabilities, or logits."""
    positive, given = _column(labels), _column(predictions)
    if from_logits:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=positive, logits=given)
    else:
        probability = tf.clip_by_value(given, 1e-7, 1.0 - 1e-7)
        losses = -(positive * tf.math.log(probability) + (1.0 - positive) * tf.math.log(1.0 - probability))
    return _ratio(losses, None if weights is None else _column(weights), _quotient, "minimize")


def rmse(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    """The root of the mean squared error. `labels` and `predictions`: numbers of the same shape."""
    errors = tf.cast(labels, tf.float32) - tf.cast(predictions, tf.float32)
    return _ratio(tf.square(errors), weights, lambda sums: math.sqrt(_quotient(sums)), "minimize")


def perplexity(losses: Any, weights: Any = None) -> Metric:
    """The exponential of the mean of `losses`, nats of each word, counted `weights` times (0 for padding)."""
    # Beyond 700 a double overflows; such a model has learnt nothing anyway.
    return _ratio(losses, weights, lambda sums: math.exp(min(_quotient(sums), 700.0)), "minimize")


def precision_at_k(labels: Any, scores: Any, k: int) -> Metric:
    """The share of the `k` items with the highest scores that are relevant, the mean over examples.

    `labels`: int [batch] or [batch, most], the numbers of relevant items, filled up with -1; no number twice.
    `scores`: floating point [batch, items].
    """
    hits, _ = _hits(labels, scores, k)
    return _ratio(hits / k, None, _quotient, "maximize")


def recall_at_k(labels: Any, scores: Any, k: int) -> Metric:
    """The share of relevant items that are among the `k` with the highest scores, the mean over examples that have one.

    Arguments as in `precision_at_k`.
    """
    hits, relevant = _hits(labels, scores, k)
    has_one = tf.cast(relevant > 0, tf.float32)
    return _ratio(hits / tf.maximum(relevant, 1.0), has_one, _quotient, "maximize")


def _hits(labels: Any, scores: Any, k: int) -> tuple[Any, Any]:
    """Of each example, how many relevant items are among the first k, and how many there are."""
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
    """Of histograms of positive and negative examples over equal parts of [0, 1]."""
    above = [np.append(np.cumsum(np.asarray(one, np.float64)[::-1])[::-1], 0.0) for one in sums]
    positive, negative = (one / one[0] if one[0] else np.full_like(one, np.nan) for one in above)
    return float(np.trapezoid(positive[::-1], negative[::-1]))
