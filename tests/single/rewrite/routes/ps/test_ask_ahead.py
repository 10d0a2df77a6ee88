"""Early and late rows of servers: what can be seen of them without ranks."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.plan.comm_options import Lookahead
from parallax_runner.rewrite.distributed_graph import Ahead, DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.rewrite.routes.ps.ask_ahead import are_among, early_first
from tests.single.plans import plan_of
from tests.single.rewrite.one_device import OneDevice, batch
from tests.single.small_models import captured


def test_rows_that_some_rank_needs_now_are_late() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        keys = tf.constant([4, 0, 2], tf.int64)
        assert session.run(are_among(keys, tf.constant([2, 4, 2], tf.int64))).tolist() == [True, False, True]
        assert session.run(are_among(keys, tf.constant([], tf.int64))).tolist() == [False, False, False]


def test_early_rows_come_before_late_ones() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(early_first(tf.constant([True, False, True, False]))).tolist() == [2, 0, 3, 1]
        assert session.run(early_first(tf.constant([], tf.bool))).tolist() == []


def rewritten(lookahead: Lookahead) -> DistributedGraph:
    single = captured(optimizer="adagrad")
    plan = plan_of(classify(single), comm="hybrid", fingerprint=single.fingerprint, lookahead=lookahead)
    return rewrite_for_rank(single, plan, rank=0, seed=1)


def test_only_rows_that_no_rank_needs_now_are_fetched_ahead(mirrored: None) -> None:
    graph = rewritten(Lookahead.ONE)
    device = OneDevice(graph)
    device.initialize()
    ahead = graph.ahead
    assert isinstance(ahead, Ahead) and list(ahead.features) == ["ids"]
    needed_now = next(one.fed for one in ahead.asked if one.fed.op.type == "Placeholder")
    now = {graph.features[0][name]: value for name, value in batch(0).items()}
    following = {ahead.features["ids"]: np.array([4, 2, 2, 4])}
    fed = {device.there(0, tensor): value for tensor, value in (now | following).items()}
    fed[device.there(0, needed_now)] = np.array([2, 0], np.int64)
    carried = (*ahead.asked, *ahead.rows)
    found = device.session.run([device.there(0, one.fetched) for one in carried], fed)
    late, places, early = found[-3:]
    assert (late.tolist(), places.tolist(), early.shape) == ([2], [0, 1, 1, 0], (1, 2))


def test_with_auto_no_row_is_fetched_ahead(mirrored: None) -> None:
    assert rewritten(Lookahead.AUTO).ahead is None
