"""The reference inserts the keys of all ranks that have examples, for each op that inserts."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.layers import growing_lookup
from parallax_runner.verify.insert_together import RankKeys, joined
from tests.growing_keys import keys_of_bucket


def test_keys_of_ranks_without_examples_are_left_out() -> None:
    of_ranks = [[np.array([3, 1]), np.array([7])], [np.array([9]), np.array([8])], [np.array([1]), np.array([7])]]
    assert [keys.tolist() for keys in joined(of_ranks, [2.0, 0.0, 1.0])] == [[3, 1, 1], [7, 7]]
    assert joined([[], []], [1.0, 1.0]) == []


def test_lookups_of_a_step_come_before_its_eviction() -> None:
    """In its step, a key finds the shared row of a bucket that is full, also if the step then empties the bucket."""
    first, second = keys_of_bucket(4, 2)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        optimizer, keys = tf.train.AdagradOptimizer(0.1), tf.placeholder(tf.int64, [None])
        rules = {"overflow": "shared", "evict": {"unused_steps": 1}, "scale": 0.0, "optimizer": optimizer}
        rows = growing_lookup(keys, name="table", dim=2, capacity=1024, training=True, **rules)
        (evicted,) = [one for one in tf.global_variables() if "evicted" in one.name]
        optimizer.minimize(tf.reduce_sum(rows))
        own = RankKeys(graph)
        session.run(tf.global_variables_initializer())
        for key in (first, second):
            feeds = {keys: [key]}
            own.insert(session, feeds, own.of(session, feeds))
            for _ in range(2):
                np.testing.assert_array_equal(session.run(rows, feeds), [[0.0, 0.0]])
            own.end_step(session, feeds)
        assert session.run(evicted).sum() == 1
