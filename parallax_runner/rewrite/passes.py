"""The passes that turn a single-device graph into one rank's, in order, with a check of the graph behind each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.errors import PlanError
from parallax_runner.graph.boundary import find_boundary
from parallax_runner.graph.devices import leave_devices, named_workers
from parallax_runner.graph.named_apart import named_apart
from parallax_runner.graph.seeds import derive_seeds
from parallax_runner.graph.shard_ids import set_shards
from parallax_runner.graph.single_device_graph import Gradient, SingleDeviceGraph, Variable
from parallax_runner.plan.plan import Plan, Route
from parallax_runner.rewrite.distributed_graph import (
    Aggregate,
    DistributedGraph,
    LogicalVariable,
    Piece,
    Rewrite,
    Shard,
)
from parallax_runner.rewrite.every_route.fed_alike import check_fed_alike
from parallax_runner.rewrite.every_route.initialize import initialize_alike, together
from parallax_runner.rewrite.every_route.integrity import check
from parallax_runner.rewrite.every_route.merge import merge_sparse_gradients
from parallax_runner.rewrite.every_route.place import place_on_worker
from parallax_runner.rewrite.every_route.skip_deduplication import skip_deduplication
from parallax_runner.rewrite.every_route.skip_nonfinite import skip_nonfinite_steps
from parallax_runner.rewrite.exchange.count_bytes import count_sent_bytes
from parallax_runner.rewrite.routes.allgather.gather import allgather_sparse_gradients
from parallax_runner.rewrite.routes.allreduce.dense import allreduce_dense_gradients
from parallax_runner.rewrite.routes.allreduce.densified import allreduce_sparse_gradients
from parallax_runner.rewrite.routes.alltoall.own_rows import own_rows, spread_over_ranks
from parallax_runner.rewrite.routes.alltoall.update_own_rows import update_own_rows
from parallax_runner.rewrite.routes.alltoall.votes import ask_all
from parallax_runner.rewrite.routes.ps.aggregate_within_worker import aggregate_within_worker
from parallax_runner.rewrite.routes.ps.asynchronous import share_counters, update_at_once
from parallax_runner.rewrite.routes.ps.backup_workers import update_with_backup
from parallax_runner.rewrite.routes.ps.replicate_variables import replicate_dense_variables
from parallax_runner.rewrite.routes.ps.shards import shard_variables
from parallax_runner.rewrite.routes.ps.staleness import leave_together
from parallax_runner.rewrite.routes.ps.synchronous import update_on_servers
from parallax_runner.rewrite.schedule.send_early import send_early

PASSES: tuple[Callable[[Rewrite], None], ...] = (
    check_fed_alike,
    merge_sparse_gradients,
    skip_deduplication,
    allreduce_dense_gradients,
    allreduce_sparse_gradients,
    allgather_sparse_gradients,
    aggregate_within_worker,
    shard_variables,
    spread_over_ranks,
    share_counters,
    update_at_once,
    update_with_backup,
    update_on_servers,
    update_own_rows,
    skip_nonfinite_steps,
    replicate_dense_variables,
    send_early,
)


def rewrite_for_rank(
    single: SingleDeviceGraph,
    plan: Plan,
    *,
    rank: int,
    seed: int,
    first_step: int = 0,
    skip_nonfinite: bool = False,
    device_type: str = "CPU",
) -> DistributedGraph:
    """The graph of one worker, with all of its replicas.

    `seed` is train.seed; `first_step` the global step that the session starts from; `skip_nonfinite` lets steps with
    NaN or infinity change nothing; `device_type` is what each replica has one of, if a worker has several replicas.
    """
    graph = tf.Graph()
    replicas: list[Rewrite] = []
    with graph.as_default():
        for number in range(plan.replicas_per_worker):
            rewrite = start_replica(
                single,
                plan,
                graph,
                replica=rank * plan.replicas_per_worker + number,
                seed=seed,
                first_step=first_step,
                skip_nonfinite=skip_nonfinite,
                device_type=device_type,
            )
            rewrite.siblings = replicas
            # Before the next replica is there, whose ops have a place of their own.
            place_on_worker(rewrite)
            replicas.append(rewrite)
        for run_pass in PASSES:
            for rewrite in replicas:
                with tf.device(rewrite.worker_device):
                    run_pass(rewrite)
                check(rewrite, after=run_pass.__name__)
        return _joined(replicas, worker=rank)


def _joined(replicas: list[Rewrite], *, worker: int) -> DistributedGraph:
    """One graph of the replicas of a worker, each rewritten."""
    first = replicas[0]
    single = first.single
    sent_bytes = tf.add_n([count_sent_bytes(rewrite) for rewrite in replicas], name="sent_bytes")
    initialization = together([initialize_alike(rewrite) for rewrite in replicas])
    train_op = tf.group(*[op for rewrite in replicas for op in (rewrite.train_op, *rewrite.step_ops)], name="step")
    losses = [rewrite.tensor(single.loss) for rewrite in replicas]
    loss = losses[0] if len(losses) == 1 else tf.add_n(losses) / tf.cast(len(losses), losses[0].dtype)
    stale = [rewrite.staleness for rewrite in replicas if rewrite.staleness is not None]
    staleness = tf.stack(stale) if stale else None
    may_start = [rewrite.may_start for rewrite in replicas if rewrite.may_start is not None]
    bounded = tf.group(*may_start) if may_start else None
    # Nobody goes while others may still run ops on its devices.
    apart = bool(stale or first.admission) or (first.plan.servers and named_workers(single.meta_graph.graph_def))
    leave = leave_together(first) if apart else None
    wish, wishes = ask_all(first) if first.plan.by_route(Route.ALLTOALL) else (None, None)
    place_on_worker(first)
    return DistributedGraph(
        graph=first.graph,
        prefixes=tuple(rewrite.prefix for rewrite in replicas),
        features=tuple(
            {name: rewrite.tensor(tensor) for name, tensor in single.features.items()} for rewrite in replicas
        ),
        stands_for={name: tensor for rewrite in replicas for name, tensor in rewrite.stands_for.items()},
        loss=loss,
        train_op=train_op,
        validation_loss=first.tensor(single.validation_loss) if single.validation_loss else None,
        initialize=initialization.initialize,
        open_inputs=initialization.open_inputs,
        open_late_inputs=initialization.open_late_inputs,
        release=initialization.release,
        wait=initialization.wait,
        agree=initialization.agree,
        sent_bytes=sent_bytes,
        applied=first.applied,
        variables=_logical_variables(first),
        copies=tuple(
            variable
            for rewrite in replicas[1:]
            for variable in _logical_variables(rewrite)
            if not any(piece.on_server for piece in variable.pieces)
        ),
        rank=worker,
        device=first.worker_device,
        wish=wish,
        wishes=wishes,
        turn=first.turn,
        staleness=staleness,
        may_start=bounded,
        leave=leave,
        admission=first.admission,
    )


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
    """Imports a replica of the single-device graph into `graph`, the default one, and finds what passes start from."""
    if plan.fingerprint != single.fingerprint:
        raise PlanError(
            f"replica {replica} has another graph than the driver planned for: the model's function must build the "
            "same graph in every process: no clock, no dependence on the host or the process, no order of a set of "
            "strings"
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
    number = replica % plan.replicas_per_worker
    prefix = f"replica_{number}/" if number else ""
    if prefix:
        graph_def = named_apart(graph_def, prefix)
    for node in graph_def.node:
        # Colocation was a hint on one device; across processes the plan decides.
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
        gradients=_aggregates(graph, gradients),
        train_op=graph.get_operation_by_name(prefix + single.train_op),
        skip_nonfinite=skip_nonfinite,
        prefix=prefix,
        first_step=first_step,
        device_type=device_type if plan.replicas_per_worker > 1 else None,
    )


def _aggregates(graph: tf.Graph, gradients: Sequence[Gradient]) -> list[Aggregate]:
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
        if not rewrite.is_sharded(variable.name):
            handle = rewrite.op(variable.name).outputs[0]
            on_server = variable.name in rewrite.counters
            mine.append(Piece(handle=handle, offset=variable.offset, shape=variable.shape, on_server=on_server))
        mine += _placed_pieces(rewrite, variable, rewrite.shards.get(rewrite.prefix + variable.name, []))
    return tuple(
        LogicalVariable(name=name, shape=shape, dtype=tf.as_dtype(dtype), pieces=tuple(pieces[name]))
        for name, (shape, dtype) in shapes.items()
    )


def _placed_pieces(rewrite: Rewrite, variable: Variable, shards: list[Shard]) -> list[Piece]:
    if shards and shards[0].modulo is not None:
        own = own_rows(rewrite, shards[0], name=variable.name)
        return [Piece(shards[0].handle, offset=variable.offset, shape=variable.shape, on_server=False, own=own)]
    pieces = []
    for shard in shards:
        first = tuple(variable.offset[:1])
        offset = (first[0] + shard.offset, *variable.offset[1:]) if first else ()
        shape = (shard.rows, *variable.shape[1:]) if variable.shape else ()
        pieces.append(Piece(handle=shard.handle, offset=offset, shape=shape, on_server=True, step=shard.step))
    return pieces
