"""Joins the rewritten replicas of a worker into one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.graph.single_device_graph import MetricSums, Variable
from parallax_runner.rewrite.distributed_graph import DistributedGraph, LogicalVariable, Piece
from parallax_runner.rewrite.every_route.finite_gradients import finite_gradients
from parallax_runner.rewrite.every_route.initialize import initialize_alike, together
from parallax_runner.rewrite.every_route.leave import leave_together
from parallax_runner.rewrite.every_route.place import place_on_worker
from parallax_runner.rewrite.every_route.vocabulary_counts import vocabulary_counts
from parallax_runner.rewrite.every_route.votes import add_votes
from parallax_runner.rewrite.every_route.weigh_by_share import if_any_example, weighed
from parallax_runner.rewrite.exchange.count_bytes import count_sent_bytes
from parallax_runner.rewrite.rewrite_state import Rewrite
from parallax_runner.routes.rewriting import needs_all_ranks


def joined(replicas: Sequence[Rewrite], *, worker: int) -> DistributedGraph:
    """Returns the graph of worker `worker`, all of whose replicas have been rewritten in one graph.

    The order in which ops are made is part of their names, which all ranks must agree on.
    """
    first = replicas[0]
    single = first.single
    sent_bytes = tf.add_n([count_sent_bytes(rewrite) for rewrite in replicas], name="sent_bytes")
    initialization = together([initialize_alike(rewrite) for rewrite in replicas])
    train_op = tf.group(*_ops_of_step(replicas), name="step")
    loss = _mean_loss(replicas)
    metric_sums, metric_last = _metrics_of_step(replicas, single.metrics)
    staleness = _staleness(replicas)
    may_start = _may_start(replicas)
    leave = leave_together(first)
    vote, votes = add_votes(first) if needs_all_ranks(first.plan) else (None, None)
    place_on_worker(first)
    validation_sums, validation_last = _metrics_of_validation(first, single.validation_metrics)
    with tf.device(first.worker_device or None):
        variables = _logical_variables(first)
        vocabularies = vocabulary_counts(first, variables)
    return DistributedGraph(
        graph=first.graph,
        prefixes=tuple(rewrite.prefix for rewrite in replicas),
        features=tuple(_tensors(rewrite, single.features) for rewrite in replicas),
        validation_features=_tensors(first, single.evaluated_by),
        validates_any_size=single.validates_any_size,
        stands_for=_stands_for(replicas),
        loss=loss,
        train_op=train_op,
        validation_loss=None if single.validation_loss is None else first.tensor(single.validation_loss),
        outputs=_tensors(first, single.outputs),
        metric_sums=metric_sums,
        metric_last=metric_last,
        validation_metric_sums=validation_sums,
        validation_metric_last=validation_last,
        validation_rows=_rows_of_validation(first, single.validation_metrics),
        initialize=initialization.initialize,
        open_inputs=initialization.open_inputs,
        open_late_inputs=initialization.open_late_inputs,
        release=initialization.release,
        wait=initialization.wait,
        agree=initialization.agree,
        sent_bytes=sent_bytes,
        applied=first.applied,
        variables=variables,
        copies=_copies(replicas),
        rank=worker,
        device=first.worker_device,
        finite_gradients=finite_gradients(list(replicas)),
        with_gradients=tuple(gradient.variable for gradient in single.gradients),
        vocabularies=vocabularies,
        vote=vote,
        votes=votes,
        ahead=first.ahead,
        mutex=first.coordination.mutex,
        staleness=staleness,
        may_start=may_start,
        leave=leave,
        admission=first.coordination.admission,
    )


def _ops_of_step(replicas: Sequence[Rewrite]) -> list[tf.Operation]:
    return [op for rewrite in replicas for op in (rewrite.train_op, *rewrite.step_ops)]


def _mean_loss(replicas: Sequence[Rewrite]) -> tf.Tensor:
    losses = [weighed(rewrite.tensor(rewrite.single.loss), rewrite.share) for rewrite in replicas]
    if len(losses) == 1:
        return losses[0]
    return tf.add_n(losses) / tf.cast(len(losses), losses[0].dtype)


# The sums of metrics, and the values that count in the last step only.
_Metrics = tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]


def _metrics_of_step(replicas: Sequence[Rewrite], metrics: MetricSums | None) -> _Metrics:
    """Returns the metrics of a step, summed over the replicas. A replica without examples adds nothing."""
    if metrics is None:
        return (), ()
    sums = [[if_any_example(one.tensor(name), one.share) for name in metrics.tensors] for one in replicas]
    last = [[weighed(one.tensor(name), one.share) for name in metrics.last] for one in replicas]
    return _summed_over(sums), _summed_over(last)


def _metrics_of_validation(first: Rewrite, metrics: MetricSums | None) -> _Metrics:
    """Returns the metrics of a validation batch."""
    if metrics is None:
        return (), ()
    return tuple(map(first.tensor, metrics.tensors)), tuple(map(first.tensor, metrics.last))


def _rows_of_validation(first: Rewrite, metrics: MetricSums | None) -> dict[str, tuple[tf.Tensor, ...]]:
    """Returns the rows of the metrics of groups in a validation batch, by the name of the metric."""
    if metrics is None:
        return {}
    return {name: tuple(map(first.tensor, rows)) for name, rows in metrics.rows.items()}


def _summed_over(of_replicas: Sequence[Sequence[tf.Tensor]]) -> tuple[tf.Tensor, ...]:
    """Returns the sums over replicas of the tensors at the same position."""
    if len(of_replicas) == 1:
        return tuple(of_replicas[0])
    return tuple(tf.add_n(tensors) for tensors in zip(*of_replicas, strict=True))


def _staleness(replicas: Sequence[Rewrite]) -> tf.Tensor | None:
    found = [one.coordination.staleness for one in replicas if one.coordination.staleness is not None]
    return tf.stack(found) if found else None


def _may_start(replicas: Sequence[Rewrite]) -> tf.Operation | None:
    found = [one.coordination.may_start for one in replicas if one.coordination.may_start is not None]
    return tf.group(*found) if found else None


def _tensors(rewrite: Rewrite, names: Mapping[str, str]) -> dict[str, tf.Tensor]:
    """Returns a replica's copies of tensors of the single-device graph, by the same keys."""
    return {key: rewrite.tensor(name) for key, name in names.items()}


def _stands_for(replicas: Sequence[Rewrite]) -> dict[str, tf.Tensor]:
    return {name: tensor for rewrite in replicas for name, tensor in rewrite.stands_for.items()}


def _copies(replicas: Sequence[Rewrite]) -> tuple[LogicalVariable, ...]:
    """Returns the variables of the other replicas that do not share them with the first replica."""
    others = [variable for rewrite in replicas[1:] for variable in _logical_variables(rewrite)]
    return tuple(variable for variable in others if not any(piece.is_shared for piece in variable.pieces))


def _logical_variables(rewrite: Rewrite) -> tuple[LogicalVariable, ...]:
    """Returns the variables that checkpoints contain, with their pieces. A variable that the model has partitioned has
    only one entry."""
    pieces: dict[str, list[Piece]] = {}
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for variable in rewrite.single.variables:
        if variable.saved:
            shapes[variable.full_name] = (variable.full_shape, variable.dtype)
            pieces.setdefault(variable.full_name, []).extend(_pieces(rewrite, variable))
    return tuple(
        LogicalVariable(name=name, shape=shape, dtype=tf.as_dtype(dtype), pieces=tuple(pieces[name]))
        for name, (shape, dtype) in shapes.items()
    )


def _pieces(rewrite: Rewrite, variable: Variable) -> list[Piece]:
    placement = rewrite.placement_of(variable.name)
    if placement is not None:
        return placement.pieces(rewrite, variable)
    handle = rewrite.op(variable.name).outputs[0]
    is_shared = variable.name in rewrite.counters
    return [Piece(handle=handle, offset=variable.offset, shape=variable.shape, is_shared=is_shared)]
