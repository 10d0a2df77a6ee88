"""Counts how often batches touch each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parallax_runner.planning.cost.measured import MOST_HOT_ROWS, RowStatistics


def count_rows(name: str, rows: int, ids: Sequence[Sequence[np.ndarray]]) -> RowStatistics:
    """Returns the statistics of a variable with `rows` rows. ids[step][rank] contains the ids of one batch, in any
    shape."""
    touched = np.zeros(rows, np.int64)
    given, distinct, merged = [], [], []
    for step in ids:
        unique = [np.unique(batch) for batch in step]
        for found in unique:
            touched[found] += 1
        given += [np.size(batch) for batch in step]
        distinct += [len(found) for found in unique]
        merged.append(len(np.unique(np.concatenate(unique))))
    counts, numbers = np.unique(touched[touched > 0], return_counts=True)
    order = np.argsort(-touched, kind="stable")[:MOST_HOT_ROWS]
    return RowStatistics(
        name=name,
        rows=rows,
        ids=float(np.mean(given)),
        distinct=float(np.mean(distinct)),
        merged=float(np.mean(merged)),
        samples=len(given),
        incidence=tuple(zip(counts.tolist(), numbers.tolist(), strict=True)),
        hot=tuple((int(row), int(touched[row])) for row in order if touched[row]),
    )
