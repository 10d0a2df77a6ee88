"""Metrics made of sums over batches are those of all examples at once, as Keras and NumPy compute them.

Their code is in parallax_runner.graph.metric_functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from sklearn.metrics import log_loss, ndcg_score, roc_auc_score

from parallax_runner import metrics
from parallax_runner.graph.group_measures import GroupedRows
from parallax_runner.graph.metric import GroupMetric, Metric

Arrays = dict[str, np.ndarray]
SIZES = (8, 8, 3)  # the last batch is a small one: a mean of the batches' means would be wrong


def batches() -> list[Arrays]:
    draw = np.random.default_rng(7)
    found = []
    for size in SIZES:
        score = draw.normal(size=(size, 5)).astype(np.float32)
        found.append(
            {
                "label": draw.integers(0, 5, size).astype(np.int32),
                "relevant": np.stack([draw.permutation(5)[:3] for _ in range(size)]) - draw.integers(0, 2, [size, 1]),
                "score": score,
                "logit": score[:, 0],
                "clicked": (score[:, 0] + draw.normal(size=size) > 0).astype(np.float32),
                "weight": draw.uniform(size=size).astype(np.float32),
            }
        )
    return found


def summed(make: Callable[[Any], Metric]) -> float:
    """The metric of the sums that a graph gives of each batch."""
    with tf.Graph().as_default(), tf.Session() as session:
        totals: list[Any] = []
        for batch in batches():
            metric = make({name: tf.constant(array) for name, array in batch.items()})
            sums = [np.asarray(one, np.float64) for one in session.run(metric.sums)]
            totals = [one + other for one, other in zip(totals, sums, strict=True)] if totals else sums
    return metric.result(totals)


def whole() -> Arrays:
    found = batches()
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


def by_keras(metric: Any, *of: str, weight: bool = False) -> float:
    arrays = whole()
    # A column, since the last dimension of Keras' cross entropy is that of classes.
    columns = (array if array.ndim > 1 else array[:, np.newaxis] for array in (arrays[name] for name in of))
    metric.update_state(*columns, sample_weight=arrays["weight"] if weight else None)
    return float(metric.result())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda b, w: metrics.accuracy(b["label"], b["score"], w),
            lambda w: by_keras(keras.metrics.SparseCategoricalAccuracy(), "label", "score", weight=w),
        ),
        (
            lambda b, w: metrics.auc(b["clicked"], b["logit"], w, from_logits=True),
            lambda w: by_keras(keras.metrics.AUC(from_logits=True), "clicked", "logit", weight=w),
        ),
        (
            lambda b, w: metrics.log_loss(b["clicked"], b["logit"], w, from_logits=True),
            lambda w: by_keras(keras.metrics.BinaryCrossentropy(from_logits=True), "clicked", "logit", weight=w),
        ),
        (
            lambda b, w: metrics.rmse(b["clicked"], b["logit"], w),
            lambda w: by_keras(keras.metrics.RootMeanSquaredError(), "clicked", "logit", weight=w),
        ),
        (
            lambda b, w: metrics.mean(b["logit"], w),
            lambda w: by_keras(keras.metrics.Mean(), "logit", weight=w),
        ),
    ],
    ids=["accuracy", "auc", "log_loss", "rmse", "mean"],
)
def test_they_are_those_of_keras(
    ours: Callable[[Any, Any], Metric], theirs: Callable[[bool], float], *, weighted: bool
) -> None:
    found = summed(lambda batch: ours(batch, batch["weight"] if weighted else None))
    assert found == pytest.approx(theirs(weighted), rel=1e-5)


def test_log_loss_of_probabilities_is_that_of_logits() -> None:
    by_logits = summed(lambda batch: metrics.log_loss(batch["clicked"], batch["logit"], from_logits=True))
    found = summed(lambda batch: metrics.log_loss(batch["clicked"], tf.sigmoid(batch["logit"])))
    assert found == pytest.approx(by_logits, rel=1e-5)


def test_perplexity_is_the_exponential_of_the_mean_over_all_words() -> None:
    found = summed(lambda batch: metrics.perplexity(tf.square(batch["logit"]), batch["weight"]))
    arrays = whole()
    assert found == pytest.approx(np.exp(np.average(arrays["logit"] ** 2, weights=arrays["weight"])), rel=1e-5)
    hopeless = Metric((), metrics.perplexity(tf.constant([1.0])).result, "minimize")
    assert np.isfinite(hopeless.result([1e6, 1.0]))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_precision_and_recall_at_k(k: int) -> None:
    arrays = whole()
    first = np.argsort(-arrays["score"], axis=1)[:, :k]
    hits = [len(set(row[row >= 0]) & set(top)) for row, top in zip(arrays["relevant"], first, strict=True)]
    relevant = (arrays["relevant"] >= 0).sum(axis=1)
    assert (relevant < 3).any(), "some lists are filled up"
    precision = summed(lambda batch: metrics.precision_at_k(batch["relevant"], batch["score"], k))
    assert precision == pytest.approx(np.mean(hits) / k)
    recall = summed(lambda batch: metrics.recall_at_k(batch["relevant"], batch["score"], k))
    assert recall == pytest.approx(np.mean(hits / relevant))


def test_an_example_without_a_relevant_item_has_no_recall() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        metric = metrics.recall_at_k([[1, -1], [-1, -1]], [[0.1, 0.9], [0.5, 0.5]], 1)
        assert metric.result(session.run(metric.sums)) == 1.0


def test_one_relevant_item_may_stand_alone() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        metric = metrics.recall_at_k([1, 0], [[0.1, 0.9], [0.1, 0.9]], 1)
        assert metric.result(session.run(metric.sums)) == 0.5


def test_classes_may_be_given_in_place_of_scores() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        metric = metrics.accuracy([1, 0, 1, 1], [1, 1, 1, 0])
        assert metric.result(session.run(metric.sums)) == 0.5


def test_nothing_counted_is_no_number() -> None:
    metric = metrics.auc([1.0], [0.3])
    assert np.isnan(metric.result([np.zeros(199), np.zeros(199)]))
    assert np.isnan(metric.result([np.ones(199), np.zeros(199)])), "there is no curve without negative examples"
    assert np.isnan(metrics.mean([1.0]).result([0.0, 0.0]))


def test_directions() -> None:
    better = {
        "maximize": [
            metrics.accuracy([1], [1]),
            metrics.auc([1], [0.5]),
            metrics.precision_at_k([0], [[0.5]], 1),
            metrics.recall_at_k([0], [[0.5]], 1),
        ],
        "minimize": [metrics.log_loss([1], [0.5]), metrics.rmse([1], [0.5]), metrics.perplexity([0.5])],
    }
    for direction, found in better.items():
        assert all(metric.direction == direction for metric in found)
    assert metrics.mean([1.0]).direction is None
    assert metrics.mean([1.0], direction="maximize").direction == "maximize"


def test_calibration_is_the_ratio_of_sums() -> None:
    arrays = whole()
    probability = 1 / (1 + np.exp(-arrays["logit"].astype(np.float64)))
    found = summed(lambda batch: metrics.calibration(batch["clicked"], batch["logit"], from_logits=True))
    assert found == pytest.approx(probability.sum() / arrays["clicked"].sum(), rel=1e-5)
    weight = arrays["weight"]
    found = summed(lambda batch: metrics.calibration(batch["clicked"], tf.sigmoid(batch["logit"]), batch["weight"]))
    assert found == pytest.approx((weight * probability).sum() / (weight * arrays["clicked"]).sum(), rel=1e-5)
    assert metrics.calibration([1], [0.5]).direction is None


def test_calibration_error_is_the_mean_difference_in_bins() -> None:
    arrays = whole()
    probability = 1 / (1 + np.exp(-arrays["logit"].astype(np.float64)))
    expected = 0.0
    for number in range(5):
        inside = np.floor(probability * 5) == number
        if inside.any():
            expected += inside.mean() * abs(probability[inside].mean() - arrays["clicked"][inside].mean())
    found = summed(lambda b: metrics.calibration_error(b["clicked"], b["logit"], from_logits=True, bins=5))
    assert found == pytest.approx(expected, rel=1e-5)
    assert metrics.calibration_error([1], [0.5]).direction == "minimize"
    ends = metrics.calibration_error([0, 1], [0.0, 1.0])
    assert ends.result([np.asarray(one) for one in ends.sums]) == 0


def of_groups(make: Callable[[Any], GroupMetric]) -> dict[str, float]:
    """The metric of the rows that a graph gives of each batch."""
    with tf.Graph().as_default(), tf.Session() as session:
        found = []
        for batch in batches():
            metric = make({name: tf.constant(array) for name, array in batch.items()})
            found.append(session.run(metric.rows))
    groups, labels, scores, weights = (np.concatenate(each) for each in zip(*found, strict=True))
    rows = GroupedRows.of(groups, labels, scores, weights)
    return metric.measure.result("it", metric.measure.sums(rows))


def in_groups() -> list[tuple[np.ndarray, np.ndarray]]:
    arrays = whole()
    inside = [arrays["label"] == group for group in np.unique(arrays["label"])]
    return [(arrays["clicked"][rows], arrays["logit"][rows]) for rows in inside]


@pytest.mark.parametrize("are_strings", [False, True])
def test_metrics_of_groups_are_those_of_scikit_learn(*, are_strings: bool) -> None:
    def groups(batch: Any) -> Any:
        return tf.strings.as_string(batch["label"]) if are_strings else batch["label"][:, tf.newaxis]

    both = [(labels, scores) for labels, scores in in_groups() if 0 < labels.mean() < 1]
    found = of_groups(lambda b: metrics.gauc(b["clicked"], b["logit"], groups(b)))
    areas = [roc_auc_score(*one) for one in both]
    assert found["it"] == pytest.approx(np.average(areas, weights=[len(labels) for labels, _ in both]))
    assert found["it_left_out"] == len(in_groups()) - len(both)
    found = of_groups(lambda b: metrics.group_ndcg_at_k(b["clicked"], b["logit"], groups(b), 2))
    relevant = [one for one in in_groups() if one[0].any()]
    assert found["it"] == pytest.approx(np.mean([ndcg_score([labels], [scores], k=2) for labels, scores in relevant]))
    found = of_groups(lambda b: metrics.group_recall_at_k(b["clicked"], b["logit"], groups(b), 2))
    recalls = [labels[np.argsort(-scores)[:2]].sum() / labels.sum() for labels, scores in relevant]
    assert found["it"] == pytest.approx(np.mean(recalls))
    found = of_groups(lambda b: metrics.group_log_loss(b["clicked"], b["logit"], groups(b), from_logits=True))
    losses = [log_loss(labels, 1 / (1 + np.exp(-scores)), labels=[0, 1]) for labels, scores in in_groups()]
    assert found["it"] == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([0.5, 1.0], "groups of the type float32: expected integers or strings"),
        ([[0, 1], [1, 0]], "expected the same number of elements for each example"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        metrics.gauc([[1], [0]], [[0.5], [0.5]], groups)


def test_directions_of_metrics_of_groups() -> None:
    one = [1.0], [0.5], [7]
    larger = [metrics.gauc(*one), metrics.group_recall_at_k(*one, 1), metrics.group_ndcg_at_k(*one, 1)]
    assert [metric.direction for metric in larger] == ["maximize"] * 3
    assert metrics.group_log_loss(*one).direction == "minimize"
    assert metrics.group_mean([0.5], [7]).direction is None
