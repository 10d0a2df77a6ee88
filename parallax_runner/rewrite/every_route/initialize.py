"""Pass: initialize variables so that they agree on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.graph.iterators import input_initializers
from parallax_runner.rewrite.conditional import only_if, or_zero
from parallax_runner.rewrite.exchange.signals import announce, receive
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.registry import uses_collectives


@dataclass(frozen=True)
class Initialization:
    """The ops of `DistributedGraph` that run before the first step."""

    initialize: tf.Operation
    open_inputs: tf.Operation
    open_late_inputs: tf.Operation
    release: tf.Operation
    wait: tf.Operation
    agree: tf.Operation


def together(replicas: Sequence[Initialization]) -> Initialization:
    """Combines the initialization of all replicas of one worker. The `release` op of the chief's worker also runs
    `wait` for the worker's other replicas."""
    first, others = replicas[0], replicas[1:]
    if not others:
        return first
    return Initialization(
        initialize=tf.group(*[each.initialize for each in replicas]),
        open_inputs=tf.group(*[each.open_inputs for each in replicas]),
        open_late_inputs=tf.group(*[each.open_late_inputs for each in replicas]),
        release=tf.group(first.release, *[each.wait for each in others]),
        wait=tf.group(*[each.wait for each in replicas]),
        agree=tf.group(*[each.agree for each in replicas]),
    )


def initialize_alike(rewrite: Rewrite) -> Initialization:
    """Creates the ops that initialize variables.

    The chief initializes variables on servers. Each rank initializes the other variables from the same seeds, and then
    takes the chief's values if the plan uses collectives.
    """
    replicated = [variable for variable in rewrite.single.variables if rewrite.placement_of(variable.name) is None]
    own = [rewrite.op(v.initializer) for v in replicated if rewrite.is_chief or v.name not in rewrite.counters]
    own += rewrite.initializers.own
    first, late = input_initializers(rewrite.single.meta_graph)
    inputs = [rewrite.op(name) for name in first]
    return Initialization(
        open_inputs=tf.group(*inputs),
        open_late_inputs=tf.group(*[rewrite.op(name) for name in late]),
        initialize=tf.group(*own, *inputs, *(rewrite.initializers.shared if rewrite.is_chief else [])),
        release=tf.group(*(announce(rewrite, tf.constant(True), name="ready") if rewrite.plan.servers else [])),
        wait=tf.group(*([receive(rewrite, tf.constant(True), name="ready")] if rewrite.plan.servers else [])),
        agree=tf.group(
            *_take_from_chief(rewrite, [rewrite.op(v.name).outputs[0] for v in replicated]),
            *rewrite.initializers.copies,
        ),
    )


def _take_from_chief(rewrite: Rewrite, handles: list[tf.Tensor]) -> list[tf.Operation]:
    """Returns ops that give these variables the chief's values on all ranks.

    The same seeds nearly always produce the same values, and tables may be large. Therefore, only variables whose
    fingerprints differ between ranks are sent.
    """
    if not uses_collectives(rewrite.plan) or not handles:
        return []
    from parallax_runner.collectives import ops as collectives

    values = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=handle.op.get_attr("dtype")) for handle in handles]
    own = tf.concat([_fingerprint(value) for value in values], axis=0)
    differs = tf.reduce_any(tf.not_equal(own, collectives.from_chief(own, name="initial/fingerprints")), axis=1)
    (ranks_that_differ,) = collectives.sum_over_ranks([tf.cast(differs, tf.int32)], name="initial/differences")
    return [
        _take_if(ranks_that_differ[number] > 0, handle, value)
        for number, (handle, value) in enumerate(zip(handles, values, strict=True))
    ]


def _fingerprint(value: tf.Tensor) -> tf.Tensor:
    """Returns an eight-byte fingerprint (uint8 [1, 8]). Equal values have equal fingerprints."""
    return tf.raw_ops.Fingerprint(data=tf.reshape(value, [1, -1]), method="farmhash64")


def _take_if(differs: tf.Tensor, handle: tf.Tensor, value: tf.Tensor) -> tf.Operation:
    """Assigns the chief's value if `differs` is true. `differs` is the same on all ranks, so either all ranks or none
    take part in the exchange."""
    from parallax_runner.collectives import ops as collectives

    same = collectives.from_chief(only_if(differs, value), name=f"initial/{handle.op.name}")
    with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=handle, value=same)]):
        taken = tf.ones([])
    return or_zero(differs, taken).op
