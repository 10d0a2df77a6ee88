"""Arrays as a dataset: whole batches in each pass, and a new order where it is shuffled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.data.batch_structure import leaves
from parallax_runner.data.from_arrays import Arrays, arrays_dataset
from parallax_runner.errors import DataError

ROWS = np.arange(10)


def made(*, shuffle: bool, **more: object) -> Arrays:
    return arrays_dataset({"id": ROWS}, ROWS * 2.0, None, batch_size=4, shuffle=shuffle, **more).with_seed(3)


def test_in_order_each_pass_has_the_same_whole_batches() -> None:
    data = made(shuffle=False).with_whole_batches()
    passes = [data.train_batch(start, 4)["id"].tolist() for start in range(0, 16, 4)]
    assert passes == 2 * [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert data.train_size == 8 and data.notes == (
        "2 examples are omitted from each epoch, because they do not fill a batch",
    )


def test_a_shuffled_pass_has_each_example_once_in_an_order_of_its_own() -> None:
    data = made(shuffle=True).with_whole_batches()
    orders = [
        np.concatenate([data.train_batch(start, 2)["id"] for start in range(first, first + 8, 2)]) for first in (0, 8)
    ]
    assert all(len(set(order)) == 8 for order in orders) and (orders[0] != orders[1]).any()
    again = made(shuffle=True).with_whole_batches().train_batch(8, 2)  # as a run that goes on there
    np.testing.assert_array_equal(again["id"], orders[1][:2])
    np.testing.assert_array_equal(again["y"], again["id"] * 2)


def test_numbers_become_what_keras_makes_of_them() -> None:
    features = made(shuffle=False).features
    assert features["id"].dtype == "int64" and features["y"].dtype == "float32"


def test_weights_of_classes_weigh_no_validation_example() -> None:
    weights = np.full(10, 3.0, np.float32)
    data = arrays_dataset(ROWS, ROWS, weights, batch_size=5, shuffle=False, validation=(ROWS[:4], ROWS[:4]))
    assert data.validation_batch(0, 4)["sample_weight"].tolist() == [1, 1, 1, 1]


ONE, OTHER = np.linspace(0, 2, 10), np.linspace(1, 3, 10)
OF_WORDS = np.arange(20.0).reshape(10, 2)


@pytest.mark.parametrize(
    ("y", "weights"),
    [
        (ROWS, ONE),
        (OF_WORDS, OF_WORDS),
        ([ROWS, ROWS], [ONE, OTHER]),
        ((ROWS, ROWS), (ONE, OTHER)),
        ({"a": ROWS, "b": ROWS}, {"a": ONE, "b": OTHER}),
    ],
)
@pytest.mark.parametrize("of_training", [False, True])
def test_weights_in_one_part_only(y: Any, weights: Any, *, of_training: bool) -> None:
    """As in Keras, the examples of the other part have no weights, which means 1."""
    validation = (ROWS, y) if of_training else (ROWS, y, weights)
    given = {"sample_weight": weights if of_training else None, "validation": validation}
    data = arrays_dataset(ROWS, y, batch_size=5, shuffle=False, **given)
    weighted, unweighted = data.train_batch(0, 10), data.validation_batch(0, 10)
    with_weights, without_weights = data.structure, data.validation_structure
    if not of_training:
        weighted, unweighted = unweighted, weighted
        with_weights, without_weights = without_weights, with_weights
    assert weighted.keys() == unweighted.keys() == set(data.features) == set(with_weights.names)
    assert without_weights == with_weights.without_weights()  # the step without weights gets (x, y)
    rows = tf.nest.flatten((ROWS, y))
    for structure, batch in ((with_weights, weighted), (without_weights, unweighted)):
        for found, one in zip(tf.nest.flatten(structure.element_of(batch)[:2]), rows, strict=True):
            np.testing.assert_allclose(found, one)
    for name, one in zip(leaves(with_weights.element[2]), tf.nest.flatten(weights), strict=True):
        np.testing.assert_allclose(weighted[name], one, rtol=1e-6)
        assert unweighted[name].shape == one.shape and (unweighted[name] == 1).all()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"y": ROWS[:3]}, "arrays of the same length, found 10 for «x», 3 for «y»"),
        ({"x": ROWS[:0], "y": ROWS[:0]}, "there are no examples"),
        ({"validation": ({"id": ROWS}, ROWS)}, r"validation_data has the features \['id', 'y'\]"),
        ({"validation": (ROWS[:, None], ROWS)}, r"validation_data: «x» is int64 \[1\], expected int64 \[\] as in"),
    ],
)
def test_refused(arguments: dict[str, object], told: str) -> None:
    given = {"x": ROWS, "y": ROWS, "sample_weight": None, "batch_size": 2, "shuffle": False, **arguments}
    with pytest.raises(DataError, match=told):
        arrays_dataset(**given)


def test_without_the_partial_batch_each_step_gets_the_same_parts() -> None:
    data = arrays_dataset(ROWS, ROWS, ONE, batch_size=4, shuffle=False, validation=(ROWS, ROWS))
    whole = data.with_whole_batches()
    assert (whole.structure, whole.validation_structure) == (data.structure, data.validation_structure)
    assert whole.validation_structure.names == ["x", "y"]


def test_whole_batches_of_fewer_examples_than_a_batch_are_refused() -> None:
    data = arrays_dataset(ROWS, ROWS, None, batch_size=11, shuffle=False)
    with pytest.raises(DataError, match="batch_size=11: there are 10 examples"):
        data.with_whole_batches()


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_range_that_crosses_passes(shuffle: bool) -> None:
    """The position of a run with another batch size need not be the start of a batch."""
    data = made(shuffle=shuffle).with_whole_batches()
    one_by_one = [data.train_batch(start, 1)["id"][0] for start in range(24)]
    np.testing.assert_array_equal(data.train_batch(6, 16)["id"], one_by_one[6:22])
