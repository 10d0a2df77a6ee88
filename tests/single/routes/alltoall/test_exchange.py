"""Rows between those that need them and the ranks that own them: what can be seen of it without ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.routes.alltoall.by_table import count, cut, numbers
from parallax_runner.routes.alltoall.request import in_range, keys_of
from parallax_runner.routes.alltoall.row_exchange import Table, side

ROWS = 6
TABLES = [
    Table("words", ROWS, (2,), tf.float32),
    Table("empty", 3, (2,), tf.float32),
    Table("users", 4, (), tf.float32),
]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_beyond_a_table_are_refused_with_its_name(dtype: type) -> None:
    """With their owner they would be rows of the table that stands behind, or before."""
    with tf.Graph().as_default(), tf.Session() as session:
        given, table = tf.placeholder(dtype, [None]), tf.placeholder(tf.int32, [None])
        checked = in_range(given, table, TABLES)
        for ids in ([], [0], [0, 3, ROWS - 1]):
            assert session.run(checked, {given: ids, table: [0] * len(ids)}).tolist() == ids
        assert session.run(checked, {given: [5, 3], table: [0, 2]}).tolist() == [5, 3]
        for ids, name, rows, wrong in (([-1, 0], "words", 6, -1), ([0, 4], "users", 4, 4), ([5, 7], "users", 4, 7)):
            with pytest.raises(tf.errors.InvalidArgumentError, match=rf"\[«{name}»\] \[{rows}\] \[{wrong}\]"):
                session.run(checked, {given: ids, table: [0, 2]})


def test_each_table_has_its_own_distinct_ids() -> None:
    """A key is an id plus the first key of its table, and no table's keys meet another's."""
    with tf.Graph().as_default(), tf.Session() as session:
        ids = [tf.constant([[5, 0], [5, 2]]), tf.constant([], tf.int64), tf.constant([3, 0, 3], tf.int64)]
        keys = keys_of(TABLES, ids, ranks=2)
        assert keys.starts == (0, 6, 10, 14)  # of 3, 2 and 2 rows of a rank
        assert session.run(keys.keys).tolist() == [0, 2, 5, 10, 13]
        assert session.run(keys.ids).tolist() == [0, 2, 5, 0, 3]
        assert [part.tolist() for part in session.run(list(keys.positions.parts))] == [[2, 0, 2, 1], [], [1, 0, 1]]


def test_a_message_is_in_the_order_of_ranks_and_then_of_tables() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        # Table 0 has rows for the ranks 1, 0, 1, table 1 has none, and table 2 has a row for rank 0.
        rows = side(tf.constant([1, 0, 1, 0]), tf.constant([[1, 0, 1], [2, 0, 0]]))
        assert [part.tolist() for part in session.run(list(rows.places().parts))] == [[2, 0, 3], [], [1]]
        marked = rows.marked(tf.constant([True, False, True, True]))
        assert session.run(marked.counts).tolist() == [[0, 0, 1], [2, 0, 0]]
        assert [part.tolist() for part in session.run(list(marked.ranks.parts))] == [[1, 1], [], [0]]
        assert [part.tolist() for part in session.run(list(rows.of([2]).places().parts))] == [[0]]


def test_values_are_numbered_by_table() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        lengths = tf.constant([0, 2, 0, 1])
        assert session.run(numbers(lengths)).tolist() == [1, 1, 3]
        assert session.run(cut(tf.constant([7, 8, 9]), lengths).starts).tolist() == [0, 0, 2, 2]
        assert session.run(numbers(tf.constant([0, 0]))).tolist() == []
        marks = tf.constant([True, False, True])
        assert session.run(count(tf.constant([1, 1, 3]), 4, marks)).tolist() == [0, 1, 0, 1]
