"""Rows between those that need them and the ranks that own them: what can be seen of it without ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.routes.alltoall.row_exchange import Table, _in_range

ROWS = 6


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_beyond_a_table_are_refused_with_its_name(dtype: type) -> None:
    """With their owner they would be rows of the table that stands behind, or before."""
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.placeholder(dtype, [None])
        checked = _in_range(given, Table("words", ROWS, (2,), tf.float32))
        for ids in ([], [0], [0, 3, ROWS - 1]):
            assert session.run(checked, {given: ids}).tolist() == ids
        for ids in ([-1], [0, ROWS], [-1, 2]):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=r"variable «words» has 6 rows, but its ids range from"
            ):
                session.run(checked, {given: ids})
