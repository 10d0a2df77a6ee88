"""The rows of metrics of groups: what ranks write is what the driver computes from, in memory or in parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parallax_runner.graph.group_measures import GroupedRows, GroupMeasure, NdcgAtK, area_under_curve
from parallax_runner.train import group_rows
from parallax_runner.train.group_rows import FOLDER, RowWriter, folder_of_step, group_values

MEASURES = {"gauc": GroupMeasure(area_under_curve), "ndcg": GroupMeasure(NdcgAtK(3))}
RANKS, ROWS = 3, 500


def columns() -> list[np.ndarray]:
    draw = np.random.default_rng(4)
    groups = draw.integers(-(2**62), 2**62, 40)[draw.integers(0, 40, ROWS)]
    labels = draw.integers(0, 2, ROWS).astype(np.float32)
    return [groups, labels, draw.normal(size=ROWS), draw.integers(0, 3, ROWS).astype(np.float32)]


def write(folder: Path, ranks: int = RANKS) -> None:
    """Writes the rows in batches of 32, as the ranks of a validation do."""
    every = columns()
    for rank in range(ranks):
        with RowWriter(folder, rank, tuple(MEASURES)) as writer:
            for start in range(32 * rank, ROWS, 32 * ranks):
                batch = [one[start : start + 32] for one in every]
                writer.write(dict.fromkeys(MEASURES, batch))


def expected() -> dict[str, float]:
    groups, labels, scores, weights = columns()
    kept = weights > 0
    rows = GroupedRows.of(groups[kept], labels[kept], scores[kept], weights[kept])
    found: dict[str, float] = {}
    for name, measure in MEASURES.items():
        found |= measure.result(name, measure.sums(rows))
    return found


@pytest.mark.parametrize("most_rows", [2**22, 60, 7])
def test_the_values_are_those_of_all_rows_at_once(
    most_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_rows, "MOST_ROWS", most_rows)
    folder = folder_of_step(tmp_path, 12)
    write(folder)
    assert group_values(folder, RANKS, MEASURES) == pytest.approx(expected(), rel=1e-12)
    assert not folder.exists()


def test_earlier_files_of_the_same_step_are_replaced(tmp_path: Path) -> None:
    folder = folder_of_step(tmp_path, 0)
    write(folder)
    write(folder, ranks=1)
    assert group_values(folder, 1, MEASURES) == pytest.approx(expected(), rel=1e-12)


def test_without_rows_a_value_is_no_number(tmp_path: Path) -> None:
    with RowWriter(tmp_path, 0, ["gauc"]):
        pass
    found = group_values(tmp_path, 1, {"gauc": MEASURES["gauc"]})
    assert np.isnan(found["gauc"]) and found["gauc_left_out"] == 0


def test_without_metrics_of_groups_nothing_is_written(tmp_path: Path) -> None:
    with RowWriter(folder_of_step(tmp_path, 3), 0, []) as writer:
        writer.write({})
    assert not (tmp_path / FOLDER).exists()
