"""What `fit` accepts as arrays, and what it refuses with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from parallax_runner.api.fit_arrays import readable
from parallax_runner.errors import ConfigError, DataError


def test_tables_and_tensors_become_the_arrays_that_keras_trains_on() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    found = readable({"table": table, "column": table["a"], "tensor": tf.constant([[1], [2]]), "none": None}, "x")
    np.testing.assert_array_equal(found["table"], [[1.0, 3.0], [2.0, 4.0]])
    np.testing.assert_array_equal(found["column"], [[1.0], [2.0]])
    np.testing.assert_array_equal(found["tensor"], [[1], [2]])
    assert found["none"] is None and found["tensor"].dtype == np.int32


def test_a_table_trains_as_in_keras() -> None:
    table = pd.DataFrame({"a": np.arange(8.0), "b": np.ones(8)})
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile("sgd", "mse")
    by_keras = model.evaluate(table, table["a"], verbose=0)
    by_arrays = model.evaluate(readable(table, "x"), readable(table["a"], "y"), verbose=0)
    assert by_arrays == pytest.approx(by_keras)
    assert by_keras == pytest.approx(1.0)  # a + b - a


def test_strings_of_any_kind_become_bytes_objects() -> None:
    words = ["ü", "", "a b"]
    column = pd.Series(words)
    given = {
        "text": np.array(words),
        "objects": np.array(words, dtype=object),
        "bytes": np.array([word.encode() for word in words]),
        "tensor": tf.constant(words),
        "column": column,
        "categories": column.astype("category"),
        "text of pandas": column.astype("string"),
    }
    found = readable(given, "x")
    for name, array in found.items():
        assert array.dtype == object, name
        assert array.ravel().tolist() == [word.encode() for word in words], name
    assert found["column"].shape == (3, 1) and found["text"].shape == (3,)
    assert readable(words, "x") == words  # a list becomes an array later


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, 3])
def test_an_object_that_is_no_string_is_refused(missing: Any) -> None:
    with pytest.raises(DataError, match=r"x \(fit\): numpy.ndarray: expected numbers or strings, found the object"):
        readable(np.array(["a", missing], dtype=object), "x")


def generated() -> Iterator[Any]:
    yield np.ones([2, 1]), np.ones([2, 1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (generated(), r"x \(fit\): a generator yields whole batches"),
        (tf.ragged.constant([[1], [2, 3]]), r"x \(fit\): tensorflow.RaggedTensor is ragged or sparse"),
        (
            pd.DataFrame({"day": pd.to_datetime(["2026-01-01"])}),
            r"x \(fit\): pandas.DataFrame has the dtype datetime.*, expected numbers or strings",
        ),
        (object(), r"x \(fit\): expected a tf.data.Dataset or arrays, found builtins.object"),
    ],
)
def test_what_the_workers_cannot_share_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        readable(given, "x")
