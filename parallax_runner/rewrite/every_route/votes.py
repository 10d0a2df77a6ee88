"""Votes on actions that need all ranks, so that all or none do them: a checkpoint, one more batch."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.state import Rewrite


def add_votes(rewrite: Rewrite) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns this rank's vote (scalar, float32, to be fed) and the sum over ranks, which travels beside a step's
    exchanges."""
    from parallax_runner.rewrite.exchange import collectives

    with rewrite.graph.as_default(), tf.name_scope("wishes/"):
        vote = tf.placeholder_with_default(tf.constant(0.0), [])
        return vote, collectives.sum_of_one(vote, name="wishes")
