"""Imports a replica of the single-device graph, before the first pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.graph.boundary import find_boundary
from parallax_runner.graph.devices import leave_devices
from parallax_runner.graph.function_shapes import forget_shapes
from parallax_runner.graph.named_apart import named_apart
from parallax_runner.graph.seeds import derive_seeds
from parallax_runner.graph.shard_ids import set_shards
from parallax_runner.graph.single_device_graph import Gradient, SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.rewrite_state import RankGradient, Rewrite


def start_replica(
    single: SingleDeviceGraph,
    plan: Plan,
    graph: tf.Graph,
    *,
    replica: int,
    seed: int,
    first_step: int = 0,
    skip_nonfinite: bool = False,
    device_type: str = "CPU",
) -> Rewrite:
    """Imports a replica of the single-device graph into `graph`, the default graph, and creates the state for the
    passes."""
    if plan.fingerprint != single.fingerprint:
        raise PlanError(
            f"the graph of replica {replica} differs from the driver's graph. The model's function must build the same "
            "graph in every process. It must not depend on the time, the host, the process or the iteration order of a "
            "set of strings"
        )
    graph_def = derive_seeds(
        single.meta_graph.graph_def,
        seed=seed,
        rank=replica,
        first_step=first_step,
        initializers=[variable.initializer for variable in single.variables],
    )
    graph_def = set_shards(graph_def, num_shards=plan.replicas, shard_id=replica)
    leave_devices(graph_def, {moved.device for moved in plan.moved})
    forget_shapes(graph_def)
    number = replica % plan.replicas_per_worker
    prefix = f"replica_{number}/" if number else ""
    if prefix:
        graph_def = named_apart(graph_def, prefix)
    for node in graph_def.node:
        # Colocation is a hint for a single device. Across processes, the plan determines where ops run.
        node.attr.pop("_class", None)
    tf.import_graph_def(graph_def, name=prefix.rstrip("/"))
    gradients = [
        dataclasses.replace(
            gradient,
            values=prefix + gradient.values,
            indices=None if gradient.indices is None else prefix + gradient.indices,
        )
        for gradient in single.gradients
    ]
    return Rewrite(
        single=single,
        plan=plan,
        rank=replica,
        graph=graph,
        region=find_boundary(graph, prefix + single.train_op, gradients).region,
        gradients=_rank_gradients(graph, gradients),
        train_op=graph.get_operation_by_name(prefix + single.train_op),
        skip_nonfinite=skip_nonfinite,
        prefix=prefix,
        first_step=first_step,
        device_type=device_type if plan.replicas_per_worker > 1 else None,
    )


def _rank_gradients(graph: tf.Graph, gradients: Sequence[Gradient]) -> list[RankGradient]:
    """Returns one entry per gradient tensor. Two variables may have the same gradient, such as b and c in y = x + b +
    c."""
    by_tensor: dict[tuple[str, str | None], RankGradient] = {}
    for gradient in gradients:
        key = (gradient.values, gradient.indices)
        if key in by_tensor:
            by_tensor[key].variables += (gradient.variable,)
        else:
            by_tensor[key] = RankGradient(
                name=f"{gradient.variable}/gradient_{len(by_tensor)}",
                variables=(gradient.variable,),
                values=graph.get_tensor_by_name(gradient.values),
                indices=graph.get_tensor_by_name(gradient.indices) if gradient.indices else None,
            )
    return list(by_tensor.values())
