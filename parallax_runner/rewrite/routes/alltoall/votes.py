"""What one rank wishes and all ranks then do together, since it needs them all: a checkpoint, one more batch."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.distributed_graph import Rewrite


def ask_all(rewrite: Rewrite) -> tuple[tf.Tensor, tf.Tensor]:
    """A scalar (float32) to feed, 0 otherwise, and its sum over ranks, which travels beside a step's own exchanges."""
    from parallax_runner.rewrite.exchange import collectives

    with rewrite.graph.as_default(), tf.name_scope("wishes/"):
        wish = tf.placeholder_with_default(tf.constant(0.0), [])
        return wish, collectives.sum_of_one(wish, name="wishes")
