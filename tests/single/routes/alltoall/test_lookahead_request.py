"""Early and late rows: what can be seen of them without ranks."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.analysis.classify import classify
from parallax_runner.plan.comm_options import Lookahead
from parallax_runner.rewrite.distributed_graph import DistributedGraph
from parallax_runner.rewrite.passes import rewrite_for_rank
from parallax_runner.routes.alltoall.by_table import cut
from parallax_runner.routes.alltoall.lookahead_request import are_among, early_first
from tests.single.plans import plan_of
from tests.single.rewrite.one_device import OneDevice, batch
from tests.single.small_models import ROWS, captured


def test_rows_that_a_step_writes_are_late() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        late = are_among(tf.constant([4, 0, 2, 4]), tf.constant([2, 4, 2]), ROWS)
        assert session.run(late).tolist() == [True, False, True, True]
        none = are_among(tf.constant([4, 0]), tf.constant([], tf.int32), ROWS)
        assert session.run(none).tolist() == [False, False]


def test_the_early_rows_of_each_table_come_before_its_late_ones() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        rows = cut(tf.constant([4, 0, 2, 4, 1, 3]), tf.constant([4, 0, 2]))
        late = tf.constant([True, False, True, True, True, False])
        assert session.run(early_first(late, rows)).tolist() == [1, 0, 2, 3, 1, 0]


def rewritten(**options: object) -> DistributedGraph:
    single = captured(optimizer="adagrad")
    asked = {"lookahead": Lookahead.ON} | options
    plan = plan_of(classify(single), comm="sharded", fingerprint=single.fingerprint, **asked)
    return rewrite_for_rank(single, plan, rank=0, seed=1)


def test_what_is_not_written_comes_before_the_step_and_the_rest_in_it(mirrored: None) -> None:
    """Rank 0 has the rows 0, 2 and 4; the first step writes 0 and 2 of them, the next one wants 2 and 4."""
    graph = rewritten()
    device = OneDevice(graph)
    device.initialize()
    ahead = graph.ahead
    assert ahead is not None and list(ahead.features) == ["ids"]
    first = {graph.features[0][name]: value for name, value in (batch(0) | {"ids": np.array([0, 2, 2, 0])}).items()}
    following = {ahead.features["ids"]: np.array([4, 2, 2, 4])}

    def run(tensors: list[tf.Tensor], feed: dict[tf.Tensor, np.ndarray]) -> list[np.ndarray]:
        fed = {device.there(0, tensor): value for tensor, value in feed.items()}
        return device.session.run([device.there(0, tensor) for tensor in tensors], fed)

    prepared = run([one.fetched for one in ahead.later], first | following)
    carried = {one.fed: value for one, value in zip(ahead.later, prepared, strict=True)}
    early = next(value for tensor, value in carried.items() if tensor.op.type == "PlaceholderWithDefault")
    # The row of id 4 is there, once; that of id 2 is not.
    assert early.shape == (1, 2)
    rows = {tensor.name: value for tensor, value in carried.items()}
    assert [1] in [value.tolist() for value in rows.values()]  # place 1 of rank 0 is id 2: the late one


def test_without_lookahead_nothing_is_prepared(mirrored: None) -> None:
    assert rewritten(lookahead=Lookahead.OFF).ahead is None
