"""A source of one's own: anything with a length whose examples have numbers."""

import dataclasses

import numpy as np
import pytest

from parallax_runner.config.compose import Composer
from parallax_runner.data.arrays import ArrayDataset
from parallax_runner.data.dataset import Feature
from parallax_runner.data.indexed import Indexed, is_source, of_source
from parallax_runner.driver.check import validated
from parallax_runner.errors import ConfigError, DataError
from parallax_runner.graph.build import load_dataset


class Rows:
    """Like Grain's MapDataset: random access, and a chain of functions."""

    def __init__(self, count, make=None):
        self.count, self.make = count, make or (lambda number: {"x": [number, number / 2], "y": number})

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return self.make(number)


class Batched(Rows):
    """Like datasets of Hugging Face, which read several examples at once."""

    asked: list

    def __getitems__(self, numbers):
        self.asked = list(numbers)
        return [self[number] for number in numbers]


def test_examples_are_shuffled_and_stacked():
    dataset = of_source(Rows(10), Rows(4), seed=1)
    assert dataset.features == {"x": Feature((2,), "float32"), "y": Feature((), "int64")}
    assert (dataset.train_size, dataset.validation_size, dataset.words_per_example) == (10, 4, None)
    batch = dataset.train_batch(0, 10)
    assert sorted(batch["y"].tolist()) == list(range(10)) != batch["y"].tolist()
    assert batch["x"].tolist() == [[y, y / 2] for y in batch["y"].tolist()]
    assert dataset.train_batch(7, 2)["y"].tolist() == batch["y"][7:9].tolist()
    assert dataset.validation_batch(1, 3)["y"].tolist() == [1, 2, 3]
    with pytest.raises(IndexError):
        dataset.validation_batch(2, 3)


def test_a_source_that_reads_several_at_once_is_asked_once():
    source = Batched(10)
    batch = of_source(source, None, seed=1).train_batch(0, 4)
    assert source.asked == batch["y"].tolist()


def test_arrays_by_name_are_rows():
    arrays = {"x": np.arange(6, dtype=np.float32), "ids": np.arange(12).reshape(6, 2)}
    dataset = of_source(arrays, {name: rows[:2] for name, rows in arrays.items()}, seed=1)
    assert isinstance(dataset, ArrayDataset) and (dataset.train_size, dataset.validation_size) == (6, 2)
    assert dataset.features["ids"] == Feature((2,), "int64")
    assert of_source(arrays, None, seed=1).validation_size == 0


@pytest.mark.parametrize(
    ("train", "validation", "told"),
    [
        (Rows(0), None, "there are no examples to train on"),
        ([1, 2], None, "example 0 is of type int; expected a mapping from names to numbers or arrays"),
        ([{"x": "a"}], None, "«x» of example 0 is of type <U1; expected numbers. data=table reads strings"),
        ({"x": np.arange(3), "y": np.arange(2)}, None, "arrays for training: expected arrays of the same length"),
        (
            {"x": np.arange(3)},
            {"x": np.ones(3)},
            "a row for training has x int64 .*; a row for validation has x float",
        ),
        ({"x": np.arange(0)}, None, "there are no examples to train on"),
    ],
)
def test_a_source_without_numbers_is_refused(train, validation, told):
    with pytest.raises(DataError, match=told):
        of_source(train, validation, seed=1)


@pytest.mark.parametrize("other", [{"x": [1, 2, 3], "y": 1}, {"x": [1, 2]}, {"x": [1, 2], "y": 0.5}])
def test_examples_of_another_form_are_refused_with_their_number(other):
    source = Rows(3, lambda number: other if number == 2 else {"x": [0.5, 1], "y": number})
    with pytest.raises(DataError, match=r"example 2 has .*; expected the names, shapes and dtypes of example 0"):
        Indexed(source, None, seed=1).train_batch(0, 3)


def made_source(count, seed):
    return Rows(count), Rows(2)


def made_nothing():
    return object()


def loaded(function, **arguments):
    config = validated(Composer().job(["model=simple", "data=linear", "comm=local", "run_dir=nowhere"]))
    target = f"{__name__}.{function}"
    return load_dataset(dataclasses.replace(config, data={"_target_": target, "batch_size": 2, **arguments}))


def test_a_data_function_returns_a_source_and_the_seed_orders_it():
    first, again, other = (loaded("made_source", count=9, seed=seed).train_batch(0, 9)["y"] for seed in (5, 5, 6))
    assert (first == again).all() and (first != other).any()
    with pytest.raises(DataError, match=r"data._target_=\S*made_source: there are no examples"):
        loaded("made_source", count=0, seed=1)
    with pytest.raises(ConfigError, match=r"expected a tf.data.Dataset, an object with __len__ and __getitem__, or"):
        loaded("made_nothing")


def test_nothing_else_is_a_source():
    assert is_source([1]) and is_source({"x": [1]}) and is_source(np.arange(3))
    assert (
        not is_source({"x": 1})
        and not is_source({})
        and not is_source("text")
        and not is_source(5)
        and not is_source(iter([1]))
    )
