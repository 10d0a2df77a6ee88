"""Products with the share of a replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.every_route.weigh_by_share import if_any_example, weighed


def value_of(make: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(make())


def share(number: float) -> Any:
    return tf.constant(number, tf.float64)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_a_product_has_the_dtype_of_the_gradient(dtype: str) -> None:
    found = value_of(lambda: weighed(tf.constant([1, 2], dtype), share(1.5)))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array([1.5, 3], dtype))


def test_a_replica_without_examples_adds_nothing_whatever_it_has_computed() -> None:
    np.testing.assert_array_equal(value_of(lambda: weighed(tf.constant([np.nan, np.inf]), share(0.0))), [0, 0])
    assert np.isnan(value_of(lambda: weighed(tf.constant(np.nan), share(0.5))))


@pytest.mark.parametrize(("number", "expected"), [(0.0, 0), (0.5, 7), (2.0, 7)])
def test_sums_of_metrics_count_with_any_example(number: float, expected: int) -> None:
    assert value_of(lambda: if_any_example(tf.constant(7), share(number))) == expected


def test_without_a_share_nothing_changes() -> None:
    with tf.Graph().as_default():
        value = tf.constant(1.0)
        assert weighed(value, None) is value
        assert if_any_example(value, None) is value
