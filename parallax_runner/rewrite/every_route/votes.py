"""Votes on actions that need all ranks, such as a checkpoint or one more batch: either all ranks take the action, or no
rank takes it."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.rewrite_state import Rewrite


def add_votes(rewrite: Rewrite) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns this rank's vote (scalar, float32, 0 if not fed) and the sum of all ranks' votes, which a step computes
    in parallel with its exchanges."""
    from parallax_runner.collectives import ops as collectives

    with rewrite.graph.as_default(), tf.name_scope("wishes/"):
        vote = tf.placeholder_with_default(tf.constant(0.0), [])
        return vote, collectives.sum_of_one(vote, name="wishes")
