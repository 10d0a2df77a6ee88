"""The functions of `parallax_runner.metrics`, which compute metrics from tensors of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.config.objective import Direction
from parallax_runner.graph.group_measures import GroupMeasure, NdcgAtK, RecallAtK, area_under_curve, mean_score
from parallax_runner.graph.metric import GroupMetric, Metric, Result


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
    positive, probability, weight = _probabilities(labels, predictions, weights, from_logits=from_logits)
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
    losses = _cross_entropy(labels, predictions, from_logits=from_logits)
    return _ratio(losses, None if weights is None else _column(weights), _quotient, "minimize")


def calibration(labels: Any, predictions: Any, weights: Any = None, *, from_logits: bool = False) -> Metric:
    """Returns the sum of the predictions divided by the sum of the labels. The best value is 1, so that neither larger
    nor smaller values are better: `calibration_error` can be an objective. NaN if all labels are 0.

    `labels`: numbers from 0 to 1. `predictions`: probabilities, or logits if `from_logits` is True.
    """
    positive, probability, weight = _probabilities(labels, predictions, weights, from_logits=from_logits)
    return Metric((tf.reduce_sum(probability * weight), tf.reduce_sum(positive * weight)), _quotient, None)


def calibration_error(
    labels: Any, predictions: Any, weights: Any = None, *, from_logits: bool = False, bins: int = 10
) -> Metric:
    """Returns the expected calibration error: the mean over examples of the difference between the mean prediction and
    the mean label in the example's bin. `bins` bins of equal width divide the probabilities from 0 to 1. The arguments
    are the same as for `calibration`."""
    positive, probability, weight = _probabilities(labels, predictions, weights, from_logits=from_logits)
    bin_number = tf.clip_by_value(tf.cast(probability * bins, tf.int32), 0, bins - 1)
    sums = [tf.math.unsorted_segment_sum(each, bin_number, bins) for each in (probability * weight, positive * weight)]
    return Metric((*sums, tf.reduce_sum(weight)), _mean_difference, "minimize")


def gauc(labels: Any, predictions: Any, groups: Any, weights: Any = None) -> GroupMetric:
    """Returns the exact area under the ROC curve of each group, averaged over groups with the weight of the number of
    their examples, or of the sum of the examples' weights (arXiv 1706.06978). Groups whose labels are all
    0 or all 1 are left out. The metric `NAME_left_out` counts them.

    `labels`: 0 or 1. `predictions`: numbers, of which only the order counts. `groups`: integers or strings. All have
    the same number of elements. Raises ValueError otherwise.
    """
    return _of_groups(labels, predictions, groups, weights, GroupMeasure(area_under_curve), "maximize")


def group_mean(values: Any, groups: Any, weights: Any = None, *, direction: Direction | None = None) -> GroupMetric:
    """Returns the mean over groups of the weighted mean of each group's `values`. Each group counts once, however many
    examples it has. `groups` are integers or strings, one for each value. `direction` is that of `mean`."""
    return _of_groups(tf.zeros_like(values), values, groups, weights, GroupMeasure(mean_score), direction)


def group_log_loss(
    labels: Any, predictions: Any, groups: Any, weights: Any = None, *, from_logits: bool = False
) -> GroupMetric:
    """Returns the mean over groups of each group's mean binary cross entropy in nats. Each group counts once: with the
    weight of its examples, the mean would be `log_loss`. The other arguments are the same as for `log_loss` and
    `gauc`."""
    losses = _cross_entropy(labels, predictions, from_logits=from_logits)
    return group_mean(losses, groups, weights, direction="minimize")


def group_recall_at_k(labels: Any, predictions: Any, groups: Any, k: int) -> GroupMetric:
    """Returns the fraction of a group's relevant examples that are among its `k` highest predictions, averaged over
    groups. Groups without a relevant example are left out. The metric `NAME_left_out` counts them. If predictions are
    equal, it is the mean over all orders.

    `labels`: an example is relevant if its label is above 0. The other arguments are the same as for `gauc`.
    """
    return _of_groups(labels, predictions, groups, None, GroupMeasure(RecallAtK(k)), "maximize")


def group_ndcg_at_k(labels: Any, predictions: Any, groups: Any, k: int) -> GroupMetric:
    """Returns the normalized discounted cumulative gain of a group's `k` highest predictions, averaged over groups.
    Groups without a label above 0 are left out. The metric `NAME_left_out` counts them. If predictions are equal, it is
    the mean over all orders, as in `sklearn.metrics.ndcg_score`.

    `labels`: the gains, numbers from 0; give 2 ** labels - 1 for exponential gains. The other arguments are the same as
    for `gauc`.
    """
    return _of_groups(labels, predictions, groups, None, GroupMeasure(NdcgAtK(k)), "maximize")


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


def _of_groups(
    labels: Any, scores: Any, groups: Any, weights: Any, measure: GroupMeasure, direction: Direction | None
) -> GroupMetric:
    groups = tf.convert_to_tensor(groups)
    if not (groups.dtype.is_integer or groups.dtype == tf.string):
        raise ValueError(f"groups of the type {groups.dtype.name}: expected integers or strings")
    check_sizes(labels=labels, predictions=scores, groups=groups)
    if groups.dtype == tf.string:
        groups = tf.strings.to_hash_bucket_fast(groups, 2**63 - 1)
    positive = _column(labels)
    weight = tf.ones_like(positive) if weights is None else tf.broadcast_to(_column(weights), tf.shape(positive))
    score = tf.reshape(tf.cast(scores, tf.float64), [-1])
    return GroupMetric((tf.reshape(tf.cast(groups, tf.int64), [-1]), positive, score, weight), measure, direction)


def check_sizes(**tensors: Any) -> None:
    """Raises ValueError if two tensors are known to have other numbers of elements for each example."""
    shapes = {name: tf.convert_to_tensor(tensor).shape for name, tensor in tensors.items()}
    sizes = {name: shape[1:].num_elements() for name, shape in shapes.items() if shape.rank}
    if len({size for size in sizes.values() if size is not None}) > 1:
        told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"expected the same number of elements for each example, not {told}")


def _probabilities(labels: Any, predictions: Any, weights: Any, *, from_logits: bool) -> tuple[Any, Any, Any]:
    """Returns labels, probabilities and weights, float32 [values]."""
    positive, given = _column(labels), _column(predictions)
    probability = tf.sigmoid(given) if from_logits else given
    weight = tf.ones_like(positive) if weights is None else tf.broadcast_to(_column(weights), tf.shape(positive))
    return positive, probability, weight


def _cross_entropy(labels: Any, predictions: Any, *, from_logits: bool) -> Any:
    """Returns the binary cross entropy of each value in nats, float32 [values]."""
    positive, given = _column(labels), _column(predictions)
    if from_logits:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=positive, logits=given)
    probability = tf.clip_by_value(given, 1e-7, 1.0 - 1e-7)
    return -(positive * tf.math.log(probability) + (1.0 - positive) * tf.math.log(1.0 - probability))


def _mean_difference(sums: Sequence[Any]) -> float:
    predicted, positive, weight = sums
    difference = float(np.sum(np.abs(np.asarray(predicted, np.float64) - np.asarray(positive, np.float64))))
    return difference / float(weight) if weight else math.nan


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
