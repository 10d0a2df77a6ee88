"""Pass: count, while a step runs, the bytes that it hands to collectives and servers."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.rewrite.distributed_graph import Rewrite
from parallax_runner.rewrite.only_if import depends_on, or_zero


def count_sent_bytes(rewrite: Rewrite) -> tf.Tensor:
    """A scalar (float64): bytes sent for this rank in the step that fetches it, from the shapes of what travels."""
    step = edit.ancestors([rewrite.train_op, *rewrite.step_ops, rewrite.tensor(rewrite.single.loss).op])
    sent = [(tensor, times) for tensor, times in rewrite.sent if tensor.op in step]
    totals = []
    for condition in [] if rewrite.admission is None else [rewrite.leads, rewrite.admission.admitted]:
        is_dead = {tensor.name for tensor, _ in sent if depends_on(condition, tensor)}
        totals.append(or_zero(condition, _bytes([one for one in sent if one[0].name in is_dead])))
        sent = [one for one in sent if one[0].name not in is_dead]
    return tf.add_n([_bytes(sent), *totals])


def _bytes(sent: list[tuple[tf.Tensor, float | tf.Tensor]]) -> tf.Tensor:
    counts = [tf.cast(tf.size(tensor), tf.float64) * (tensor.dtype.size * times) for tensor, times in sent]
    return tf.add_n([tf.constant(0.0, tf.float64), *counts])
