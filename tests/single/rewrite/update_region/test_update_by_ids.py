"""Which of an update's ids belong to a shard, and where its rows are."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.placement import Shard
from parallax_runner.rewrite.update_region.update_by_ids import in_shard

ROWS = 7


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_each_id_belongs_to_one_shard_at_the_place_of_its_row(shards: int) -> None:
    table, ids = np.arange(ROWS) * 10, np.array([6, 0, 3, 3, 5, 1])
    found = np.zeros_like(ids)
    owners = np.zeros_like(ids)
    with tf.Graph().as_default(), tf.Session() as session:
        for offset in range(shards):
            own_rows = table[offset::shards]
            shard = Shard(tf.constant(0), offset, len(own_rows), "", step=shards)
            is_here, places = session.run(in_shard(tf.constant(ids), shard))
            owners += is_here
            found[is_here] = own_rows[places]
    assert (owners == 1).all()
    np.testing.assert_array_equal(found, table[ids])
