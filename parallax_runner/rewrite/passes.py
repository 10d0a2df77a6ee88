"""The passes that turn a single-device graph into one rank's, in order, with a check of the graph behind each."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.graph.boundary import find_boundary
from parallax_runner.graph.seeds import derive_seeds
from parallax_runner.graph.single_device_graph import Gradient, SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.allgather import allgather_sparse_gradients
from parallax_runner.rewrite.allreduce import allreduce_dense_gradients
from parallax_runner.rewrite.count_bytes import count_sent_bytes
from parallax_runner.rewrite.distributed_graph import Aggregate, DistributedGraph, LogicalVariable, Piece, Rewrite
from parallax_runner.rewrite.initialize import initialize_alike
from parallax_runner.rewrite.integrity import check
from parallax_runner.rewrite.merge import merge_sparse_gradients
from parallax_runner.rewrite.parameter_server import update_on_servers
from parallax_runner.rewrite.place import place_on_worker
from parallax_runner.rewrite.shards import shard_variables
from parallax_runner.rewrite.skip_deduplication import skip_deduplication
from parallax_runner.rewrite.skip_nonfinite import skip_nonfinite_steps

PASSES: tuple[Callable[[Rewrite], None], ...] = (
    merge_sparse_gradients,
    skip_deduplication,
    allreduce_dense_gradients,
    allgather_sparse_gradients,
    shard_variables,
    update_on_servers,
    skip_nonfinite_steps,
)


def rewrite_for_rank(
    single: SingleDeviceGraph,
    plan: Plan,
    *,
    rank: int,
    seed: int,
    first_step: int = 0,
    skip_nonfinite: bool = False,
) -> DistributedGraph:
    """The graph of one rank.

    `seed` is train.seed; `first_step` the global step that the session starts from; `skip_nonfinite` lets steps with
    NaN or infinity change nothing.
    """
    rewrite = _start(single, plan, rank=rank, seed=seed, first_step=first_step, skip_nonfinite=skip_nonfinite)
    with rewrite.graph.as_default():
        for run_pass in PASSES:
            run_pass(rewrite)
            check(rewrite, after=run_pass.__name__)
        sent_bytes = count_sent_bytes(rewrite)
        initialization = initialize_alike(rewrite)
        train_op = tf.group(rewrite.train_op, *rewrite.step_ops, name="step")
        place_on_worker(rewrite)
    graph = rewrite.graph
    return DistributedGraph(
        graph=graph,
        features={name: graph.get_tensor_by_name(tensor) for name, tensor in single.features.items()},
        loss=graph.get_tensor_by_name(single.loss),
        train_op=train_op,
        validation_loss=graph.get_tensor_by_name(single.validation_loss) if single.validation_loss else None,
        initialize=initialization.initialize,
        release=initialization.release,
        wait=initialization.wait,
        agree=initialization.agree,
        sent_bytes=sent_bytes,
        applied=rewrite.applied,
        variables=_logical_variables(rewrite),
        rank=rank,
        device=rewrite.worker_device,
    )


def _start(
    single: SingleDeviceGraph, plan: Plan, *, rank: int, seed: int, first_step: int, skip_nonfinite: bool = False
) -> Rewrite:
    if plan.fingerprint != single.fingerprint:
        raise PlanError(
            f"rank {rank} built another graph than the driver planned for: the model's function must build the same "
            "graph in every process (no draws from an unseeded generator, no clock, no dependence on the host)"
        )
    graph_def = derive_seeds(
        single.meta_graph.graph_def,
        seed=seed,
        rank=rank,
        first_step=first_step,
        initializers=[variable.initializer for variable in single.variables],
    )
    for node in graph_def.node:
        # Colocation was a hint on one device; across processes the plan decides.
        node.attr.pop("_class", None)
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return Rewrite(
        single=single,
        plan=plan,
        rank=rank,
        graph=graph,
        region=find_boundary(graph, single.train_op, single.gradients).region,
        gradients=_aggregates(graph, single.gradients),
        train_op=graph.get_operation_by_name(single.train_op),
        skip_nonfinite=skip_nonfinite,
    )


def _aggregates(graph: tf.Graph, gradients: tuple[Gradient, ...]) -> list[Aggregate]:
    """One entry a tensor: two variables may have the same gradient (y = x + b + c)."""
    by_tensor: dict[tuple[str, str | None], Aggregate] = {}
    for gradient in gradients:
        key = (gradient.values, gradient.indices)
        if key in by_tensor:
            by_tensor[key].variables += (gradient.variable,)
        else:
            by_tensor[key] = Aggregate(
                name=f"{gradient.variable}/gradient_{len(by_tensor)}",
                variables=(gradient.variable,),
                values=graph.get_tensor_by_name(gradient.values),
                indices=graph.get_tensor_by_name(gradient.indices) if gradient.indices else None,
            )
    return list(by_tensor.values())


def _logical_variables(rewrite: Rewrite) -> tuple[LogicalVariable, ...]:
    pieces: dict[str, list[Piece]] = {}
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for variable in rewrite.single.variables:
        if not variable.saved:
            continue
        shapes[variable.full_name] = (variable.full_shape, variable.dtype)
        mine = pieces.setdefault(variable.full_name, [])
        if variable.name not in rewrite.shards:
            handle = rewrite.graph.get_operation_by_name(variable.name).outputs[0]
            mine.append(Piece(handle=handle, offset=variable.offset, shape=variable.shape, on_server=False))
        for shard in rewrite.shards.get(variable.name, ()):
            first = tuple(variable.offset[:1])
            offset = (first[0] + shard.offset, *variable.offset[1:]) if first else ()
            shape = (shard.rows, *variable.shape[1:]) if variable.shape else ()
            mine.append(Piece(handle=shard.handle, offset=offset, shape=shape, on_server=True))
    return tuple(
        LogicalVariable(name=name, shape=shape, dtype=tf.as_dtype(dtype), pieces=tuple(pieces[name]))
        for name, (shape, dtype) in shapes.items()
    )
