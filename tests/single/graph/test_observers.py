"""Which ops of a script look at aggregated gradients, and which of them every worker may ask for in a step."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph.script_graph import capture_script
from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def watched() -> SingleDeviceGraph:
    with tf.Graph().as_default() as graph:
        weights = tf.get_variable("weights", [2])
        fed = tf.placeholder(tf.float32, [], name="fed")
        loss = tf.reduce_sum(weights * weights)
        ((gradient, _),) = pairs = tf.train.GradientDescentOptimizer(0.1).compute_gradients(loss, [weights])
        clipped = tf.clip_by_norm(gradient, 1.0)
        tf.train.GradientDescentOptimizer(0.1).apply_gradients([(clipped, pairs[0][1])])
        half = tf.nn.l2_loss(clipped, name="half")
        tf.sqrt(half, name="norm")
        tf.reduce_sum(tf.square(clipped, name="squares"), name="sum_of_squares")
        tf.identity(tf.norm(clipped), name="length")
        tf.sqrt(tf.Print(half, [half], name="printed"), name="of_printed")
        tf.reduce_max(clipped, name="largest")
        tf.multiply(half, fed, name="with_what_is_fed")
        tf.nn.l2_loss(gradient, name="own")
        tf.cond(fed > 0, lambda: tf.identity(half, name="in_a_branch"), lambda: 0.0)
        tf.assign(tf.get_variable("kept", []), half, name="kept_norm")
    return capture_script(graph)


def test_observers_and_what_every_worker_may_ask_for() -> None:
    single = watched()
    there = {node.name for node in single.meta_graph.graph_def.node}
    names = ("norm", "sum_of_squares", "squares", "largest", "with_what_is_fed", "own", "half", "printed")
    assert there.issuperset(names)
    assert set(names) & set(single.observers) == set(names) - {"own", "half"}  # «kept_norm», an update, needs «half»
    assert {"norm", "sum_of_squares", "half", "length"} <= set(single.asked)
    assert {"squares", "largest", "with_what_is_fed", "printed", "of_printed"}.isdisjoint(single.asked)
    assert not any("in_a_branch" in name for name in (*single.observers, *single.asked))
