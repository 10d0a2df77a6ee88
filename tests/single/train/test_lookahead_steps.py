"""What one step hands to the next, with a small graph in place of one that was rewritten."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Ahead, Carried
from parallax_runner.train.lookahead_steps import StepsAhead, give_pools


@pytest.fixture
def steps() -> Iterator[StepsAhead]:
    """A step is fed `rows`: of the first one the batch itself, of any other the batch plus the rows before."""
    config = tf.ConfigProto(inter_op_parallelism_threads=1)
    give_pools(config)
    with tf.Graph().as_default() as graph:
        batch = tf.placeholder(tf.int32, [])
        rows = tf.placeholder_with_default(-1, [], name="rows")
        with tf.control_dependencies([tf.debugging.assert_positive(batch, message="no such batch")]):
            found = batch + rows
        later = Carried(rows, found + 0)
        ahead = Ahead({"ids": batch}, first=(Carried(rows, batch),), later=(later,))
        with tf.Session(graph=graph, config=config) as session:
            yield StepsAhead(ahead, session)


def of(number: int) -> dict[str, np.ndarray]:
    return {"ids": np.array(number)}


def fed(steps: StepsAhead, batch: int, following: int | None) -> int:
    (value,) = steps.start(of(batch), None if following is None else of(following)).values()
    return int(value)


def test_each_step_is_fed_what_was_found_during_the_one_before(steps: StepsAhead) -> None:
    found = []
    for batch, following in ((1, 10), (10, 100), (100, None)):
        found.append(fed(steps, batch, following))
        steps.finish()
    assert found == [1, 11, 111]


def test_without_a_next_step_nothing_is_prepared(steps: StepsAhead) -> None:
    assert fed(steps, 1, None) == 1
    steps.finish()
    assert fed(steps, 2, None) == 1  # nobody has prepared another


def test_what_preparing_raises_is_raised_at_the_end_of_the_step(steps: StepsAhead) -> None:
    assert fed(steps, 1, -1) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such batch"):
        steps.finish()


def test_a_traced_step_has_the_ops_of_both(steps: StepsAhead) -> None:
    trace = tf.RunMetadata()
    steps.start(of(1), of(2), is_traced=True)
    steps.finish(trace=trace)
    assert any(node.node_name for stats in trace.step_stats.dev_stats for node in stats.node_stats)
