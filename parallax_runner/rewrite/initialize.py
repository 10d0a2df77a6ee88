"""Pass: initial values that agree on all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.rewrite.barrier import announce, receive
from parallax_runner.rewrite.distributed_graph import Rewrite


@dataclass(frozen=True)
class Initialization:
    """The ops of `DistributedGraph` that run before the first step."""

    initialize: tf.Operation
    release: tf.Operation
    wait: tf.Operation
    agree: tf.Operation


def initialize_alike(rewrite: Rewrite) -> Initialization:
    """Initial values: of variables on servers by the chief; of the others on each rank, from equal seeds, and then,
    where ranks have collectives, the chief's for all."""
    replicated = [variable for variable in rewrite.single.variables if variable.name not in rewrite.shards]
    graph = rewrite.graph
    own = [graph.get_operation_by_name(variable.initializer) for variable in replicated]
    tables = rewrite.single.meta_graph.collection_def[tf.GraphKeys.TABLE_INITIALIZERS].node_list.value
    own += [graph.as_graph_element(name) for name in tables]
    return Initialization(
        initialize=tf.group(*own, *(rewrite.shard_initializers if rewrite.is_chief else [])),
        release=tf.group(*(announce(rewrite, tf.constant(True), name="ready") if rewrite.plan.servers else [])),
        wait=tf.group(*([receive(rewrite, tf.constant(True), name="ready")] if rewrite.plan.servers else [])),
        agree=tf.group(*(_take_from_chief(rewrite, [v.name for v in replicated]))),
    )


def _take_from_chief(rewrite: Rewrite, names: list[str]) -> list[tf.Operation]:
    if not rewrite.plan.uses_collectives:
        return []
    from parallax_runner.rewrite import collectives

    ops = []
    for name in names:
        handle = rewrite.graph.get_operation_by_name(name)
        value = tf.raw_ops.ReadVariableOp(resource=handle.outputs[0], dtype=handle.get_attr("dtype"))
        same = collectives.from_chief(value, name=f"initial/{name}")
        ops.append(tf.raw_ops.AssignVariableOp(resource=handle.outputs[0], value=same))
    return ops
