"""Measures of groups equal scikit-learn's, group by group, whatever the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

from parallax_runner.graph.group_measures import (
    GroupedRows,
    GroupMeasure,
    NdcgAtK,
    RecallAtK,
    area_under_curve,
    mean_score,
)

DRAW = np.random.default_rng(7)
ROWS = 4000
GROUPS = DRAW.integers(-60, 60, ROWS) * 3
# Few distinct scores, so that there are ties.
SCORES = np.round(DRAW.normal(size=ROWS), 1)
LABELS = (DRAW.random(ROWS) < np.where(GROUPS % 5 == 0, 0.02, 0.3)).astype(np.float64)
WEIGHTS = DRAW.integers(1, 5, ROWS).astype(np.float64)


def value(measure: GroupMeasure, weights: np.ndarray, order: np.ndarray | None = None) -> dict[str, float]:
    order = np.arange(ROWS) if order is None else order
    rows = GroupedRows.of(GROUPS[order], LABELS[order], SCORES[order], weights[order])
    return measure.result("it", measure.sums(rows))


def each_group() -> list[np.ndarray]:
    return [np.flatnonzero(group == GROUPS) for group in np.unique(GROUPS)]


@pytest.mark.parametrize("weights", [np.ones(ROWS), WEIGHTS])
def test_area_under_curve_is_weighted_by_examples_and_leaves_out_groups_of_one_class(weights: np.ndarray) -> None:
    found = value(GroupMeasure(area_under_curve), weights)
    both = [rows for rows in each_group() if 0 < LABELS[rows].mean() < 1]
    areas = [roc_auc_score(LABELS[rows], SCORES[rows], sample_weight=weights[rows]) for rows in both]
    assert found["it"] == pytest.approx(np.average(areas, weights=[weights[rows].sum() for rows in both]), rel=1e-12)
    assert found["it_left_out"] == len(each_group()) - len(both) > 0


@pytest.mark.parametrize("k", [1, 5, 1000])
def test_ndcg_at_k(k: int) -> None:
    relevant = [rows for rows in each_group() if LABELS[rows].any()]
    expected = [ndcg_score([LABELS[rows]], [SCORES[rows]], k=k) for rows in relevant]
    found = value(GroupMeasure(NdcgAtK(k)), np.ones(ROWS))
    assert found["it"] == pytest.approx(np.mean(expected), rel=1e-12)
    assert found["it_left_out"] == len(each_group()) - len(relevant)


def test_recall_at_k_is_the_mean_over_all_orders_of_ties() -> None:
    labels, scores = np.array([1.0, 0.0, 1.0, 1.0]), np.array([0.9, 0.5, 0.5, 0.5])
    rows = GroupedRows.of(np.zeros(4, np.int64), labels, scores, np.ones(4))
    # The second place has a relevant row in two of three orders.
    assert GroupMeasure(RecallAtK(2)).sums(rows)[0] == pytest.approx((1 + 2 / 3) / 3)
    no_ties = SCORES + np.arange(ROWS) * 1e-9
    expected = []
    for mine in each_group():
        if LABELS[mine].any():
            first = mine[np.argsort(-no_ties[mine])[:5]]
            expected.append(LABELS[first].sum() / LABELS[mine].sum())
    rows = GroupedRows.of(GROUPS, LABELS, no_ties, np.ones(ROWS))
    found = GroupMeasure.result("it", GroupMeasure(RecallAtK(5)).sums(rows))
    assert found["it"] == pytest.approx(np.mean(expected), rel=1e-12)


def test_the_mean_of_scores_counts_each_group_once() -> None:
    expected = np.mean([np.average(SCORES[rows], weights=WEIGHTS[rows]) for rows in each_group()])
    assert value(GroupMeasure(mean_score), WEIGHTS) == pytest.approx({"it": expected, "it_left_out": 0})


@pytest.mark.parametrize("of_groups", [area_under_curve, RecallAtK(3), NdcgAtK(3), mean_score])
def test_the_order_of_the_rows_does_not_count(of_groups: object) -> None:
    measure = GroupMeasure(of_groups)  # type: ignore[arg-type]
    shuffled = np.random.default_rng(1).permutation(ROWS)
    assert value(measure, WEIGHTS, shuffled) == pytest.approx(value(measure, WEIGHTS), rel=1e-12)


def test_sums_of_parts_with_whole_groups_add_up() -> None:
    measure = GroupMeasure(area_under_curve)
    is_low = GROUPS < 0
    parts = [GroupedRows.of(GROUPS[one], LABELS[one], SCORES[one], WEIGHTS[one]) for one in (is_low, ~is_low)]
    nothing = GroupedRows.of(np.zeros(0, np.int64), *[np.zeros(0)] * 3)
    total = measure.sums(parts[0]) + measure.sums(parts[1]) + measure.sums(nothing)
    assert measure.result("it", total) == pytest.approx(value(measure, WEIGHTS))


def test_no_group_and_a_score_that_is_no_number_give_nan() -> None:
    measure = GroupMeasure(area_under_curve)
    assert np.isnan(measure.result("it", np.zeros(3))["it"])
    rows = GroupedRows.of(np.zeros(2, np.int64), np.array([0.0, 1.0]), np.array([np.nan, 1.0]), np.ones(2))
    assert np.isnan(measure.result("it", measure.sums(rows))["it"])
