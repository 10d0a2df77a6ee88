"""Pass: count, while a step runs, the bytes that it hands to collectives and servers."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.rewrite.distributed_graph import Rewrite


def count_sent_bytes(rewrite: Rewrite) -> tf.Tensor:
    """A scalar (float64): bytes sent for this rank in the step that fetches it, from the shapes of what travels."""
    step = edit.ancestors([rewrite.train_op, *rewrite.step_ops, rewrite.tensor(rewrite.single.loss).op])
    counts = [
        tf.cast(tf.size(tensor), tf.float64) * (tensor.dtype.size * times)
        for tensor, times in rewrite.sent
        if tensor.op in step
    ]
    return tf.add_n([tf.constant(0.0, tf.float64), *counts])
