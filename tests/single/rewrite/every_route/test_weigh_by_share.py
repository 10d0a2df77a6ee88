"""What a replica contributes to a step in proportion to its examples."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.rewrite.every_route.weigh_by_share import if_any_example, weighed


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_value_is_multiplied_in_its_own_dtype(dtype: str) -> None:
    value = tf.constant([2.0, np.nan, np.inf], dtype)
    product = weighed(value, tf.constant(1.5, tf.float64))
    assert product.dtype == dtype
    np.testing.assert_array_equal(product, [3.0, np.nan, np.inf])


def test_a_replica_without_examples_contributes_zeros_even_if_its_values_are_not_finite() -> None:
    value = tf.constant([2.0, np.nan, np.inf])
    np.testing.assert_array_equal(weighed(value, tf.constant(0.0, tf.float64)), [0, 0, 0])
    np.testing.assert_array_equal(if_any_example(value, tf.constant(0.0, tf.float64)), [0, 0, 0])


def test_other_values_stay() -> None:
    value = tf.constant([2.0, 3.0])
    assert weighed(value, None) is value and if_any_example(value, None) is value
    np.testing.assert_array_equal(if_any_example(value, tf.constant(0.5, tf.float64)), value)
