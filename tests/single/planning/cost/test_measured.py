"""Statistics of touched rows: extrapolation over ranks, and their file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_runner.planning.cost import measured
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.worker.row_trial.count import count_rows
from tests.single.planning.test_planner import DENSE, SPARSE

batches = st.lists(
    st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=12).map(np.array), min_size=2, max_size=2),
    min_size=1,
    max_size=4,
)


@given(batches)
def test_counts_are_those_of_sets(ids: list[list[np.ndarray]]) -> None:
    found = count_rows("table", 20, ids)
    samples = [set(batch.tolist()) for step in ids for batch in step]
    assert found.ids == np.mean([len(batch) for step in ids for batch in step])
    assert found.distinct == np.mean([len(sample) for sample in samples])
    assert found.merged == np.mean([len(set().union(*(set(b.tolist()) for b in step))) for step in ids])
    touched = {row: sum(row in sample for sample in samples) for row in range(20)}
    assert dict(found.hot) == {row: count for row, count in touched.items() if count}
    assert [count for _, count in found.hot] == sorted((count for _, count in found.hot), reverse=True)
    assert sum(rows for _, rows in found.incidence) == sum(count > 0 for count in touched.values())


@given(batches)
def test_rarefaction_is_the_mean_over_all_choices_of_samples(ids: list[list[np.ndarray]]) -> None:
    found = count_rows("table", 20, ids)
    samples = [set(batch.tolist()) for step in ids for batch in step]
    for ranks in range(1, len(samples) + 1):
        sizes = [len(set().union(*chosen)) for chosen in itertools.combinations(samples, ranks)]
        assert found.merged_over(ranks) == pytest.approx(np.mean(sizes))


@given(batches)
def test_rows_apart_are_the_mean_over_all_choices_of_a_step_and_a_batch(ids: list[list[np.ndarray]]) -> None:
    found = count_rows("table", 20, ids)
    samples = [set(batch.tolist()) for step in ids for batch in step]
    for ranks in range(1, len(samples)):
        apart = [
            len(samples[number] - set().union(*(samples[other] for other in step)))
            for number in range(len(samples))
            for step in itertools.combinations([other for other in range(len(samples)) if other != number], ranks)
        ]
        assert found.apart_from(ranks) == pytest.approx(np.mean(apart), abs=1e-9)


@given(batches, st.integers(1, 200))
def test_fewer_rows_are_apart_from_more_ranks(ids: list[list[np.ndarray]], ranks: int) -> None:
    found = count_rows("table", 20, ids)
    fewer, more = found.apart_from(ranks + 1), found.apart_from(ranks)
    if ranks != found.samples - 1:  # Chao's estimate begins behind it, and may add rows that were never seen
        assert fewer <= more + 1e-9
    assert 0 <= fewer <= found.distinct


@given(batches, st.integers(1, 200))
def test_more_ranks_touch_more_rows_but_never_more_than_there_are(ids: list[list[np.ndarray]], ranks: int) -> None:
    found = count_rows("table", 20, ids)
    fewer, more = found.merged_over(ranks), found.merged_over(ranks + 1)
    assert fewer <= more + 1e-9
    assert found.distinct - 1e-9 <= fewer <= min(20, ranks * found.distinct) + 1e-9


def test_extrapolation_finds_what_zipf_draws_would_touch() -> None:
    rows, ids, ranks = 2000, 300, 48
    draw = np.random.default_rng(1)
    chances = 1 / np.arange(1, rows + 1)
    chances /= chances.sum()
    seen = [[draw.choice(rows, ids, p=chances) for _ in range(2)] for _ in range(20)]
    found = count_rows("table", rows, seen)
    truth = (1 - (1 - chances) ** (ids * ranks)).sum()
    assert found.merged_over(ranks) == pytest.approx(truth, rel=0.05)
    assert found.merged_over(2) == pytest.approx(found.merged, rel=0.05)


def test_a_measurement_comes_back_from_its_file(tmp_path: Path) -> None:
    rows = count_rows("table", 100, [[np.array([1, 2, 2]), np.array([7])]])
    found = Measured("f", 2, 1, 0.01, 32, None, (DENSE, SPARSE), (rows,), "2026-01-01")
    measured.save(found, tmp_path / "measured.json")
    assert measured.load(tmp_path / "measured.json") == found
    assert hash(measured.load(tmp_path / "measured.json")) == hash(found)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step_secs": 0.0}, "step_secs is 0.0, expected a number above 0"),
        ({"format": 99}, "format 99, expected 4"),
        ({"format": 3}, "format 3, expected 4"),
    ],
)
def test_a_file_that_is_no_measurement_is_refused(change: dict[str, float], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    measured.save(Measured("f", 2, 3, 0.25, 8, None, (), (), "2026-01-01"), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=rf"measured\.json: {reason}$"):
        measured.load(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"measured\.json: expected a measurement$"):
        measured.load(path)
