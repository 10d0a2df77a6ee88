"""Measures of groups of examples, such as the impressions of a user: a value for each group, and the mean over groups.

They are computed with NumPy from the rows of whole groups. No result depends on the order of the rows: rows of a group
with the same score count as if they were in any order with the same probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# The values of groups, and the weights of these values in the mean, both float64 [groups]. A group with the weight 0 is
# left out.
Values = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class GroupedRows:
    """Rows of whole groups. The rows of a group are together, and scores fall within a group.

    `labels`, `scores` and `weights` are float64 [rows]. `starts`, int64 [groups], is the first row of each group.
    """

    labels: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, groups: np.ndarray, labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> GroupedRows:
        """Sorts rows of whole groups. All arrays are [rows], and `groups` are integers."""
        by_score = np.argsort(-scores)
        order = by_score[np.argsort(groups[by_score], kind="stable")]  # faster than np.lexsort
        taken = [np.asarray(one, np.float64)[order] for one in (labels, scores, weights)]
        return cls(taken[0], taken[1], taken[2], _starts(groups[order]))

    @property
    def row_starts(self) -> np.ndarray:
        """The first row of the group of each row, int64 [rows]."""
        return np.repeat(self.starts, np.diff(np.append(self.starts, len(self.scores))))

    @property
    def ties(self) -> np.ndarray:
        """The first row of each run of rows of a group that have the same score, int64 [runs]."""
        is_first = np.append(True, self.scores[1:] != self.scores[:-1])
        is_first[self.starts] = True
        return np.flatnonzero(is_first)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum of `values` [rows] over each group."""
        return np.add.reduceat(values, self.starts)


@dataclass(frozen=True)
class GroupMeasure:
    """A measure whose value is the weighted mean over groups. `of_groups` computes the values and their weights."""

    of_groups: Callable[[GroupedRows], Values]

    def sums(self, rows: GroupedRows) -> np.ndarray:
        """Returns what these groups add to the measure: the weighted sum of the values, the sum of the weights, and the
        number of groups that are left out, float64 [3]."""
        if not len(rows.starts):
            return np.zeros(3)
        values, weights = self.of_groups(rows)
        is_used = weights > 0
        total = np.sum(np.where(is_used, values, 0.0) * weights)
        if np.isnan(rows.scores).any():
            total = math.nan
        return np.array([total, weights.sum(), np.count_nonzero(~is_used)], np.float64)

    @staticmethod
    def result(name: str, sums: Sequence[float] | np.ndarray) -> dict[str, float]:
        """Returns the measure under `name`, and the number of groups that it leaves out under `NAME_left_out`. The
        measure is NaN if no group is used. `sums` are those of all groups."""
        total, weight, left_out = map(float, sums)
        return {name: total / weight if weight else math.nan, f"{name}_left_out": left_out}


def area_under_curve(rows: GroupedRows) -> Values:
    """Returns the exact area under the ROC curve of each group, with the sum of the group's weights. A group whose
    labels are all 0 or all 1 is left out. A label between 0 and 1 is a share of a positive example."""
    positive, negative = rows.weights * rows.labels, rows.weights * (1.0 - rows.labels)
    ties = rows.ties
    of_ties = np.searchsorted(ties, rows.starts)
    wins = np.add.reduceat(positive, ties), np.add.reduceat(negative, ties)
    all_positive, all_negative = rows.sums(positive), rows.sums(negative)
    groups = np.repeat(np.arange(len(rows.starts)), np.diff(np.append(of_ties, len(ties))))
    up_to = np.cumsum(wins[1])
    before = (up_to - wins[1])[of_ties]  # negative weight of earlier groups
    below = all_negative[groups] - (up_to - before[groups])
    pairs = np.add.reduceat(wins[0] * (below + 0.5 * wins[1]), of_ties)
    all_pairs = all_positive * all_negative
    has_both = all_pairs > 0
    area = np.divide(pairs, all_pairs, out=np.zeros_like(pairs), where=has_both)
    return area, np.where(has_both, rows.sums(rows.weights), 0.0)


def mean_score(rows: GroupedRows) -> Values:
    """Returns the weighted mean of the scores of each group. Each group has the weight 1."""
    weights = rows.sums(rows.weights)
    return rows.sums(rows.weights * rows.scores) / weights, np.ones_like(weights)


@dataclass(frozen=True)
class RecallAtK:
    """The share of a group's relevant rows, those with a label above 0, among its `k` highest scores. A group without
    relevant rows is left out. Each other group has the weight 1."""

    k: int

    def __call__(self, rows: GroupedRows) -> Values:
        is_relevant = (rows.labels > 0).astype(np.float64)
        found, all_relevant = rows.sums(_shared(rows, is_relevant) * _is_first(rows, self.k)), rows.sums(is_relevant)
        has_any = all_relevant > 0
        recall = np.divide(found, all_relevant, out=np.zeros_like(found), where=has_any)
        return recall, has_any.astype(np.float64)


@dataclass(frozen=True)
class NdcgAtK:
    """The discounted cumulative gain of a group's `k` highest scores, divided by that of the best order. The gain of a
    row is its label, and the discount at place 1, 2, … is log2(1 + place). A group without a label above 0 is left out.
    Each other group has the weight 1."""

    k: int

    def __call__(self, rows: GroupedRows) -> Values:
        discounts = _is_first(rows, self.k) / np.log2(2.0 + _places(rows))
        gain = rows.sums(_shared(rows, rows.labels) * discounts)
        groups = np.repeat(np.arange(len(rows.starts)), np.diff(np.append(rows.starts, len(rows.labels))))
        best = rows.sums(rows.labels[np.lexsort((-rows.labels, groups))] * discounts)
        has_any = best > 0
        return np.divide(gain, best, out=np.zeros_like(gain), where=has_any), has_any.astype(np.float64)


def _places(rows: GroupedRows) -> np.ndarray:
    """Returns the number of rows of the same group before each row, int64 [rows]."""
    return np.arange(len(rows.scores)) - rows.row_starts


def _is_first(rows: GroupedRows, k: int) -> np.ndarray:
    """Returns 1.0 for the first `k` rows of each group and 0.0 for the others, float64 [rows]."""
    return (_places(rows) < k).astype(np.float64)


def _shared(rows: GroupedRows, values: np.ndarray) -> np.ndarray:
    """Replaces each value [rows] by the mean over the rows of its group with the same score."""
    ties = rows.ties
    counts = np.diff(np.append(ties, len(values)))
    return np.repeat(np.add.reduceat(values, ties) / counts, counts)


def _starts(sorted_groups: np.ndarray) -> np.ndarray:
    if not len(sorted_groups):
        return np.zeros(0, np.int64)
    is_first = np.append(True, sorted_groups[1:] != sorted_groups[:-1])
    return np.flatnonzero(is_first)
