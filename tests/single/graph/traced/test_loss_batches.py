"""Parts of batches, and batches with zeros, for the trial of a model's losses."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from parallax_runner.graph.traced.loss_batches import part, with_zeros


def test_a_part_has_the_rows_of_each_kind_of_feature() -> None:
    specs = {"dense": tf.TensorSpec([None, 2]), "words": tf.RaggedTensorSpec([None, None], tf.int64)}
    batch = {
        "dense": np.arange(6.0).reshape(3, 2),
        "words/values": np.arange(5),
        "words/row_splits": np.array([0, 1, 1, 5]),
    }
    found = part(batch, specs, 1, 3)
    assert found.keys() == batch.keys()
    np.testing.assert_array_equal(found["dense"], [[2, 3], [4, 5]])
    np.testing.assert_array_equal(found["words/values"], [1, 2, 3, 4])
    np.testing.assert_array_equal(found["words/row_splits"], [0, 0, 4])


def test_the_second_half_has_more_zeros() -> None:
    specs = {"numbers": tf.TensorSpec([None, 100]), "texts": tf.TensorSpec([None, 100], tf.string)}
    batch = {"numbers": np.ones([8, 100]), "texts": np.full([8, 100], b"a", dtype=object)}
    found = with_zeros(batch, specs)
    for name, nothing in (("numbers", 0), ("texts", b"")):
        few, many = (int((half == nothing).sum()) for half in np.split(found[name], 2))
        assert 0 < few < many < 400, name
    assert (batch["numbers"] == 1).all() and (batch["texts"] == b"a").all()
