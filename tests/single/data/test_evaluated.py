"""The examples that an evaluation reads: the validation examples, or another part of the same data."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallax_runner.config.schema import ReadConfig, RunConfig
from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.evaluated import PARTS, evaluated
from parallax_runner.data.generated import GeneratedDataset
from parallax_runner.errors import ConfigError
from parallax_runner.train.feed import Feed


class WithTest(ArrayDataset):
    """Has three test examples."""

    test_size = 3

    def test_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
        return {"x": np.arange(200, 203)[start : start + size]}


def made(kind: type[ArrayDataset] = ArrayDataset) -> ArrayDataset:
    parts = {"train": {"x": np.arange(7)}, "validation": {"x": np.arange(100, 105)}}
    return kind(**parts, words_per_example=None, seed=1)


def config_of(part: str) -> Any:
    return SimpleNamespace(read=ReadConfig(part=part))


@pytest.mark.parametrize(
    ("part", "expected"), [("validation", range(100, 105)), ("train", range(7)), ("test", range(200, 203))]
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_each_example_of_the_part_is_read_once(part: str, expected: range, ranks: int) -> None:
    data = evaluated(config_of(part), made(WithTest))
    assert data.validation_size == len(expected)
    feeds = [Feed(data, 2, rank, ranks) for rank in range(ranks)]
    read = [batch["x"] for feed in feeds for batch in feed.validation_batches(in_parts=False)]
    assert sorted(np.concatenate(read)) == list(expected)
    with pytest.raises(IndexError):
        data.validation_batch(len(expected) - 1, 2)


def test_training_rows_are_in_their_own_order_if_the_data_knows_it() -> None:
    found = evaluated(config_of("train"), made())
    assert found.validation_batch(2, 3)["x"].tolist() == [2, 3, 4]
    assert found.is_in_order  # type: ignore[attr-defined]
    generated = GeneratedDataset(lambda rows: {"x": rows * 2}, train_size=5, validation_size=1, seed=1)
    assert evaluated(config_of("train"), generated).validation_batch(1, 3)["x"].tolist() == [2, 4, 6]

    class Plain:
        features, words_per_example, train_size, validation_size = made().features, None, 7, 0

        def train_batch(self, start: int, size: int) -> dict[str, np.ndarray]:
            return made().train_batch(start, size)

    shuffled: Any = evaluated(config_of("train"), Plain())  # type: ignore[arg-type]
    assert not shuffled.is_in_order
    assert sorted(shuffled.validation_batch(0, 7)["x"]) == list(range(7))


def test_training_goes_on_as_before() -> None:
    data = evaluated(config_of("train"), made())
    np.testing.assert_array_equal(data.train_batch(3, 9)["x"], made().train_batch(3, 9)["x"])
    assert data.sizes() == made().sizes()  # type: ignore[attr-defined]


def test_a_part_that_is_missing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"read\.part=test: the data has no test examples"):
        evaluated(config_of("test"), made())


def test_data_that_is_read_in_order_has_no_other_parts() -> None:
    data = made()
    data.share = lambda rank, ranks, replicas: None  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"read\.part=train: the data is read in order"):
        evaluated(config_of("train"), data)
    assert evaluated(config_of("validation"), data) is data


def test_the_schema_lists_the_parts() -> None:
    (field,) = [one for one in dataclasses.fields(RunConfig) if one.name == "read"]
    assert field.type is ReadConfig
    (part,) = dataclasses.fields(ReadConfig)
    assert part.metadata["choices"] == PARTS
