"""Row i of n shards is in shard i mod n: the arithmetic of ids, places and rows."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_runner.planning.placement import split_rows
from parallax_runner.rewrite.distributed_graph import index
from parallax_runner.rewrite.placement import Shard
from parallax_runner.routes.ps.on_servers import in_row_order, partition_ids


def shards_of(rows: int, number: int) -> list[Shard]:
    handle = tf.constant(0)
    sizes = split_rows(rows, number)
    return [Shard(handle, offset=k, rows=size, device="", step=number) for k, size in enumerate(sizes)]


@settings(deadline=None, max_examples=40)
@given(data=st.data(), rows=st.integers(1, 40))
def test_each_id_is_where_its_row_is(data: st.DataObject, rows: int) -> None:
    number = data.draw(st.integers(1, rows))
    ids = data.draw(st.lists(st.integers(0, rows - 1), max_size=10))
    whole = np.arange(rows * 2).reshape(rows, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        shards = shards_of(rows, number)
        pieces = [shard.take(tf.constant(whole)) for shard in shards]
        parts, positions = partition_ids(tf.constant(ids, tf.int64), number)
        places = [shard.places_of(part) for shard, part in zip(shards, parts, strict=True)]
        back = [shard.ids_at(place) for shard, place in zip(shards, places, strict=True)]
        found = session.run((pieces, parts, positions, places, back, in_row_order(pieces)))
    pieces, parts, positions, places, back, joined = found
    np.testing.assert_array_equal(joined, whole)
    assert sorted(np.concatenate(positions).tolist()) == list(range(len(ids)))
    for shard, piece, part, position, place, again in zip(shards, *found[:5], strict=True):
        assert len(piece) == shard.rows
        np.testing.assert_array_equal(piece[place], whole[part])
        np.testing.assert_array_equal(part, np.array(ids, int)[position])
        np.testing.assert_array_equal(again, part)


def test_parts_of_a_known_variable() -> None:
    whole = np.arange(12).reshape(6, 2)
    assert whole[index((1, 0), (3, 2), 2)].tolist() == [[2, 3], [6, 7], [10, 11]]
    assert whole[index((2, 1), (2, 1), 1)].tolist() == [[5], [7]]
    assert np.array(7)[index((), (), 1)] == 7
