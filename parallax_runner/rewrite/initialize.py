"""Pass: initial values that agree on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.graph.iterators import iterator_initializers
from parallax_runner.rewrite.barrier import announce, receive
from parallax_runner.rewrite.distributed_graph import Rewrite


@dataclass(frozen=True)
class Initialization:
    """The ops of `DistributedGraph` that run before the first step."""

    initialize: tf.Operation
    release: tf.Operation
    wait: tf.Operation
    agree: tf.Operation


def together(replicas: Sequence[Initialization]) -> Initialization:
    """The same of all replicas of one worker; where the chief is among them, its `release` lets the others go on."""
    first, others = replicas[0], replicas[1:]
    if not others:
        return first
    return Initialization(
        initialize=tf.group(*[each.initialize for each in replicas]),
        release=tf.group(first.release, *[each.wait for each in others]),
        wait=tf.group(*[each.wait for each in replicas]),
        agree=tf.group(*[each.agree for each in replicas]),
    )


def initialize_alike(rewrite: Rewrite) -> Initialization:
    """Initial values: of variables on servers by the chief; of the others on each rank, from equal seeds, and then,
    where ranks have collectives, the chief's for all."""
    replicated = [variable for variable in rewrite.single.variables if not rewrite.is_sharded(variable.name)]
    own = [rewrite.op(v.initializer) for v in replicated if rewrite.is_chief or v.name not in rewrite.counters]
    meta_graph = rewrite.single.meta_graph
    tables = meta_graph.collection_def[tf.GraphKeys.TABLE_INITIALIZERS].node_list.value
    own += rewrite.own_initializers
    own += [rewrite.op(name) for name in dict.fromkeys([*tables, *iterator_initializers(meta_graph.graph_def)])]
    return Initialization(
        initialize=tf.group(*own, *(rewrite.shard_initializers if rewrite.is_chief else [])),
        release=tf.group(*(announce(rewrite, tf.constant(True), name="ready") if rewrite.plan.servers else [])),
        wait=tf.group(*([receive(rewrite, tf.constant(True), name="ready")] if rewrite.plan.servers else [])),
        agree=tf.group(
            *_take_from_chief(rewrite, [*(rewrite.op(v.name).outputs[0] for v in replicated), *rewrite.hot_rows]),
            *rewrite.first_copies,
        ),
    )


def _take_from_chief(rewrite: Rewrite, handles: list[tf.Tensor]) -> list[tf.Operation]:
    if not rewrite.plan.uses_collectives:
        return []
    from parallax_runner.rewrite import collectives

    ops = []
    for handle in handles:
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=handle.op.get_attr("dtype"))
        same = collectives.from_chief(value, name=f"initial/{handle.op.name}")
        ops.append(tf.raw_ops.AssignVariableOp(resource=handle, value=same))
    return ops
