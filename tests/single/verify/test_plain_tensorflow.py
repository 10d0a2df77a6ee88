"""A user's own step runs as it is, except that gradients are merged first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax_runner.verify.plain_tensorflow import merged_rows, plain_tensorflow


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_rows_of_one_id_are_summed_in_a_wide_type(dtype: str) -> None:
    values = tf.cast(tf.constant([[1.0], [2.0], [2.0**-9], [2.0**-9]]), dtype)
    found = merged_rows(tf.IndexedSlices(values, tf.constant([5, 2, 5, 5], tf.int32), tf.constant([9, 1])))
    assert found.indices.dtype == tf.int32 and found.dtype.name == dtype
    np.testing.assert_array_equal(found.indices, [2, 5])
    expected = tf.cast(tf.constant([[2.0], [1.0 + 2.0**-8]]), dtype)  # in bfloat16, 1 + 2⁻⁹ would be 1
    np.testing.assert_array_equal(found.values.numpy(), expected.numpy())


@pytest.mark.parametrize("dense", [False, True])
def test_a_compiled_function_is_traced_anew_and_afterwards_is_as_before(dense: bool) -> None:
    table = tf.Variable(tf.zeros([4, 1]))
    traces = []

    @tf.function(jit_compile=True)
    def gradient_of(ids: Any) -> Any:
        traces.append(ids)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids))
        return tape.gradient(loss, table)

    ids = tf.constant([3, 1, 3])
    with plain_tensorflow(dense=dense):
        found = [gradient_of(ids), gradient_of(ids)]
    assert len(traces) == 1
    if dense:
        assert all(one.numpy().tolist() == [[0], [1], [0], [2]] for one in found)
    else:
        assert all((one.indices.numpy().tolist(), one.values.numpy().tolist()) == ([1, 3], [[1], [2]]) for one in found)
    assert gradient_of(ids).indices.numpy().tolist() == [3, 1, 3]
    assert len(traces) == 2
    assert not tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]
