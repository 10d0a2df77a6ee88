"""Which rows go to validation and testing: by a hash of their lines, or by the value of a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from parallax_runner.data.table.partition import Partition
from parallax_runner.errors import ConfigError

ROWS = 100_000


def test_fractions_are_those_of_the_rows() -> None:
    partition = Partition({"test": 0.2, "validation": 0.05})
    numbers = partition.part_of_numbers(np.arange(ROWS))
    assert partition.parts == ("train", "test", "validation")
    np.testing.assert_allclose(np.bincount(numbers) / ROWS, [0.75, 0.2, 0.05], atol=0.005)


def test_the_part_of_a_row_depends_on_its_number_and_the_seed_only() -> None:
    rows = np.random.default_rng(1).permutation(ROWS)
    half = Partition({"validation": 0.5})
    numbers = half.part_of_numbers(rows)
    one_by_one = [half.part_of_numbers(rows[row : row + 1])[0] for row in range(50)]
    np.testing.assert_array_equal(numbers[:50], one_by_one)
    others = [half.part_of_numbers(rows + 1), Partition({"validation": 0.5}, seed=1).part_of_numbers(rows)]
    for other in others:
        assert 0.48 < np.mean(numbers == other) < 0.52


@pytest.mark.parametrize("kind", ["numbers", "strings"])
def test_rows_from_a_bound_on(kind: str) -> None:
    generator = np.random.default_rng(2)
    values: list[Any] = generator.integers(-5, 5, 1000).tolist()
    bounds: dict[str, Any] = {"test": 3, "validation": -1.0}
    if kind == "strings":
        values = ["".join(generator.choice(list("aé日"), generator.integers(0, 3))) for _ in range(1000)]
        bounds = {"test": "é", "validation": "aa"}
    values[7] = None
    partition = Partition(column="c", bounds=bounds)
    assert partition.parts == ("train", "validation", "test")
    assert partition.read_column is not None
    numbers = partition.part_of_values(pa.array(values, partition.read_column.type))

    def key(one: Any) -> Any:
        return one.encode() if isinstance(one, str) else one

    low, high = key(bounds["validation"]), key(bounds["test"])
    expected = [0 if one is None else (key(one) >= low) + (key(one) >= high) for one in values]
    assert numbers.tolist() == expected
    assert set(expected) == {0, 1, 2}


def test_no_rows() -> None:
    assert Partition({"test": 0.5}).part_of_numbers(np.empty(0, np.int64)).tolist() == []
    assert Partition(column="c", bounds={"test": 1}).part_of_values(pa.array([], pa.float64())).tolist() == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, r"data\.partition.*expected either fractions, or bounds and a column"),
    ({"fractions": 0.1}, r"data\.partition\.fractions=0\.1: expected a part and a number"),
    ({"fractions": None}, r"data\.partition\.fractions=null: expected a part and a number"),
    ({"fractions": {"train": 0.1}}, r"data\.partition\.fractions=train: expected validation or test"),
    ({"fractions": {"test": "0.1"}}, r"data\.partition\.fractions\.test=.*0\.1.*: expected a number"),
    ({"fractions": {"test": float("nan")}}, r"data\.partition\.fractions\.test=nan: expected a number"),
    ({"fractions": {"test": True}}, r"data\.partition\.fractions\.test=true: expected a number"),
    ({"fractions": {"test": 0.5, "validation": 0.5}}, "expected fractions above 0, and a rest for training"),
    ({"fractions": {"test": 0}}, "expected fractions above 0"),
    ({"fractions": {"test": 0.1}, "seed": "one"}, r"data\.partition\.seed=one: expected an integer"),
    ({"fractions": {"test": 0.1}, "column": "c"}, r"data\.partition\.column=c: expected a column and bounds together"),
    ({"bounds": {"test": 1}}, r"data\.partition\.column=null: expected a column and bounds together"),
    ({"bounds": {"test": 1}, "column": 3}, r"data\.partition\.column=3: expected the name of a column"),
    ({"bounds": {"test": None}, "column": "c"}, r"bounds\.test=null: expected a finite number or a string"),
    ({"bounds": {"test": float("inf")}, "column": "c"}, r"bounds\.test=inf: expected a finite number or a string"),
    ({"bounds": {"test": 1, "validation": "a"}, "column": "c"}, "expected only numbers or only strings"),
    ({"bounds": {"test": 1, "validation": 1.0}, "column": "c"}, "expected different bounds"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_wrong_setting_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Partition(**given)


def test_each_row_is_in_one_fold() -> None:
    lines = np.arange(1, ROWS + 1)
    parts = [Partition(folds=4, fold=fold) for fold in range(4)]
    numbers = np.stack([part.part_of_numbers(lines) for part in parts])
    assert parts[0].parts == ("train", "validation")
    assert numbers.sum(axis=0).tolist() == [1] * ROWS
    np.testing.assert_allclose(numbers.mean(axis=1), 0.25, atol=0.005)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"folds": 1, "fold": 0}, "data.partition.folds=1: expected an integer, at least 2"),
        ({"folds": 3}, "data.partition.fold=null: expected an integer from 0 to 2"),
        ({"folds": 3, "fold": 3}, "data.partition.fold=3: expected an integer from 0 to 2"),
        ({"fold": 1}, "data.partition.folds=null"),
        ({"folds": 3, "fold": 1, "fractions": {"test": 0.1}}, "expected either fractions, or bounds and a column, or"),
    ],
)
def test_folds_that_do_not_divide(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        Partition(**given)
    assert told in str(error.value)
