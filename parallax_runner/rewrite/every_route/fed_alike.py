"""Pass: check that the values a script feeds to its updates, such as a learning rate, are the same on all ranks."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from parallax_runner.graph import edit
from parallax_runner.graph.edit import is_write
from parallax_runner.graph.fed import is_fed_scalar
from parallax_runner.rewrite.rewrite_pass import rewrite_pass
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.registry import uses_collectives
from parallax_runner.routes.rewriting import shared_variables


@rewrite_pass(reads=["gradients"])
def check_fed_alike(rewrite: Rewrite) -> None:
    """Makes the step fail if ranks update their copies of variables with a fed scalar that differs between ranks.

    Each scalar is sent to all ranks when the step begins, which takes only a few bytes. Updates of variables on servers
    are not checked, since they use only the chief's value.
    """
    plan = rewrite.plan
    if plan.replicas == 1 or not uses_collectives(plan):
        return
    readers = _updates_by_fed(rewrite)
    for fed, writes in sorted(readers.items(), key=lambda pair: pair[0].name):
        alike = _alike(fed)
        for op in writes:
            op._add_control_input(alike)


def _updates_by_fed(rewrite: Rewrite) -> dict[tf.Operation, list[tf.Operation]]:
    """Returns, for each fed scalar, the writes that read it, except writes to variables on servers."""
    on_servers = shared_variables(rewrite.plan) | set(rewrite.plan.counters)
    gradients = frozenset(tensor.name for one in rewrite.gradients for tensor in one.tensors)
    features = set(rewrite.single.features.values())
    readers: dict[tf.Operation, list[tf.Operation]] = {}
    for op in sorted(filter(is_write, rewrite.region), key=lambda op: op.name):
        handle = edit.handle_behind(op.inputs[0])
        if handle is None or handle.name in on_servers:
            continue
        for source in edit.ancestors([op], stop_at=gradients, control=False):
            if is_fed_scalar(source, features):
                readers.setdefault(source, []).append(op)
    return readers


def _alike(fed: tf.Operation) -> tf.Operation:
    from parallax_runner.collectives import ops as collectives

    value = fed.outputs[0]
    with tf.name_scope("fed_alike/"):
        sent = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
        of_all = collectives.concat_over_ranks(tf.reshape(sent, [1]), name=f"fed/{fed.name}")
        told = (
            f"«{fed.name}» must be fed the same value on all workers, because the update reads it. The values by rank:"
        )
        return tf.Assert(tf.reduce_all(tf.equal(of_all, of_all[0])), [told, of_all], summarize=10)
