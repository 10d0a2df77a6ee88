"""Captures a script's graph. The script does not name its loss and train op, so the gradients determine which ops form
a step.

Every op that depends on a recorded gradient and writes a variable is an update. A step runs all updates and the ops
that wait for updates, such as the group that the script calls its train op. Fetching any of these ops runs a step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph import capture, edit, gradients_hook, references
from parallax_runner.graph.boundary import Boundary, find_boundary
from parallax_runner.graph.effects import Effects
from parallax_runner.graph.fingerprint import fingerprint_of
from parallax_runner.graph.gradients_of_values import distribute, found_in
from parallax_runner.graph.observers import behind_aggregation, numbers_among, observers_of
from parallax_runner.graph.own_aggregation import refuse_own_aggregation
from parallax_runner.graph.restored_values import check_restored_values
from parallax_runner.graph.single_device_graph import Gradient, SingleDeviceGraph

TRAIN_OP = "parallax_runner/train_op"
LOSS = "parallax_runner/loss"
MOST_NAMED = 4  # losses that a note names
PARTITIONERS = "parallax_runner/partitioners"


def capture_script(graph: tf.Graph) -> SingleDeviceGraph:
    """Returns the `SingleDeviceGraph` of a script's graph.

    The train op runs all updates. The loss is NaN if the script's loss is unknown.

    Raises CaptureError if no gradient was recorded, or if no recorded gradient updates a variable.
    """
    with graph.as_default():
        meta_graph = references.to_resources(tf.train.export_meta_graph())
    variables = capture.variables_of(meta_graph)
    imported = tf.Graph()
    with imported.as_default():
        tf.import_graph_def(meta_graph.graph_def, name="")
    check_restored_values(imported, variables)
    recorded, of_values = capture.recorded_in(meta_graph, variables), found_in(imported, meta_graph)
    refuse_own_aggregation(imported, recorded)
    if not recorded and not of_values:
        raise CaptureError(
            "no gradient was recorded in the graph that was passed to parallel_run: build the graph after "
            "`import parallax_runner`, and compute gradients with tf.gradients, compute_gradients or minimize "
            f"(not GradientTape){gradients_hook.where_else(graph)}"
        )
    updates = updates_of(imported, [*recorded, *(Gradient(one.variable, one.gradient.name, None) for one in of_values)])
    if distribute(imported, list(updates), recorded, of_values):
        meta_graph.graph_def.CopyFrom(imported.as_graph_def())
    if not updates:
        raise CaptureError(
            "no gradient in the graph that was passed to parallel_run updates a variable: add a train op"
        )
    _refuse_unseen_updates(imported, updates)
    step = [*updates, *_last_behind(updates)]
    meta_graph.graph_def.node.add(name=TRAIN_OP, op="NoOp", input=sorted({f"^{op.name}" for op in step}))
    unknown_loss = _why_unknown(meta_graph, imported)
    meta_graph.graph_def.node.append(_loss_node(meta_graph, imported, is_known=unknown_loss is None))
    whole = tf.Graph()
    with whole.as_default():
        tf.import_graph_def(meta_graph.graph_def, name="")
    boundary = find_boundary(whole, TRAIN_OP, recorded)
    observers = observers_of(whole, boundary)
    return SingleDeviceGraph(
        meta_graph=meta_graph,
        features={},
        loss=f"{LOSS}:0",
        train_op=TRAIN_OP,
        validation_loss=None,
        validation_metric=None,
        outputs={},
        variables=variables,
        gradients=boundary.gradients,
        fingerprint=fingerprint_of(meta_graph.graph_def),
        callbacks=tuple(getattr(graph, "_py_funcs_used_in_graph", ())),
        asked=_asked(whole, boundary, observers),
        observers=tuple(sorted(op.name for op in observers)),
        apart=_apart(whole, boundary.gradients, {op.name for op in step}),
        losses=_losses_of(meta_graph),
        unknown_loss=unknown_loss,
        notes=() if unknown_loss is None else (f"the loss is unknown: {unknown_loss}",),
    )


def updates_of(graph: tf.Graph, gradients: Iterable[Gradient]) -> set[tf.Operation]:
    """Returns all ops that write a variable and depend on one of the gradients through data or control edges."""
    effects = Effects.of(graph)
    return {op for op in _behind(_ops_of(graph, gradients)) if effects.written_by(op)}


def has_partitioner(graph: tf.Graph) -> bool:
    """Returns whether `get_partitioner` marked a variable of the graph."""
    return bool(graph.get_collection(PARTITIONERS))


def _behind(starts: Iterable[tf.Operation]) -> set[tf.Operation]:
    found: set[tf.Operation] = set()
    stack = list(starts)
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack += [consumer for output in op.outputs for consumer in output.consumers()]
            stack += op._control_outputs
    return found


def _last_behind(updates: set[tf.Operation]) -> list[tf.Operation]:
    """Returns the ops that wait for an update and that no other op waits for."""
    behind = _behind(updates)
    return [op for op in behind if not op._control_outputs and not any(out.consumers() for out in op.outputs)]


def _apart(graph: tf.Graph, gradients: Iterable[Gradient], ends: set[str]) -> tuple[frozenset[str], ...]:
    """Returns the sets of variables that are updated by separate train ops, or an empty tuple if there is only one set.

    Two variables are in the same set if an op in `ends` waits for the gradients of both. A session can fetch each of
    these ops.
    """
    parts: list[_Part] = []
    for gradient in gradients:
        waiting = {op.name for op in _behind(_ops_of(graph, [gradient]))} & ends
        parts = _with_part(parts, _Part({gradient.variable}, waiting))
    if len(parts) < 2:
        return ()
    return tuple(sorted((frozenset(part.variables) for part in parts), key=sorted))


class _Part(NamedTuple):
    """Variables that are updated together, and the names of the ops that wait for their gradients."""

    variables: set[str]
    waiting: set[str]

    def overlaps(self, other: _Part) -> bool:
        """Returns whether the parts have a variable or an op in common."""
        return bool(self.waiting & other.waiting or self.variables & other.variables)


def _with_part(parts: Iterable[_Part], new: _Part) -> list[_Part]:
    """Returns the parts with a new one, which is joined with all parts that it overlaps."""
    separate, variables, waiting = [], set(new.variables), set(new.waiting)
    for part in parts:
        if part.overlaps(new):
            variables |= part.variables
            waiting |= part.waiting
        else:
            separate.append(part)
    return [*separate, _Part(variables, waiting)]


def _ops_of(graph: tf.Graph, gradients: Iterable[Gradient]) -> list[tf.Operation]:
    names = [name for gradient in gradients for name in (gradient.values, gradient.indices) if name]
    return [graph.get_tensor_by_name(name).op for name in names]


def _refuse_unseen_updates(graph: tf.Graph, updates: set[tf.Operation]) -> None:
    for op in graph.get_operations():
        if op.type.startswith(("ResourceApply", "ResourceSparseApply")) and op not in updates:
            raise CaptureError(
                f"«{op.name}» updates «{edit.handle_of(op)[0].name}» with a gradient that was not recorded: build the "
                "whole graph after `import parallax_runner`, and compute gradients with tf.gradients, "
                "compute_gradients or minimize"
            )


def _losses_of(meta_graph: tf.MetaGraphDef) -> tuple[str, ...]:
    return tuple(sorted({name.decode() for name in meta_graph.collection_def[gradients_hook.LOSSES].bytes_list.value}))


def _why_unknown(meta_graph: tf.MetaGraphDef, graph: tf.Graph) -> str | None:
    """Returns the reason why the loss of a script is unknown, or None if its gradients are those of one scalar."""
    names = _losses_of(meta_graph)
    if len(names) > 1:
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        listed = ", ".join(f"«{name}»" for name in names[:MOST_NAMED])
        return (
            f"the script computes gradients of {len(names)} tensors ({listed}{more}). The script itself can print or "
            "add up their values"
        )
    if not names:
        return "the script computes gradients without a tensor that could be the loss"
    loss = graph.get_tensor_by_name(names[0])
    if loss.shape.rank == 0 and loss.dtype.is_floating:
        return None
    return f"«{names[0]}», whose gradients the script computes, is not a scalar of a floating-point type"


def _loss_node(meta_graph: tf.MetaGraphDef, graph: tf.Graph, *, is_known: bool) -> tf.NodeDef:
    """Returns a node that copies the scalar whose gradients were computed. If the loss is unknown, the node contains
    NaN."""
    node = tf.NodeDef(name=LOSS)
    if is_known:
        loss = graph.get_tensor_by_name(_losses_of(meta_graph)[0])
        node.op = "Identity"
        node.input.append(loss.name)
        node.attr["T"].type = loss.dtype.as_datatype_enum
    else:
        node.op = "Const"
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(float("nan"), tf.float32, []))
    return node


def _asked(graph: tf.Graph, boundary: Boundary, observers: set[tf.Operation]) -> tuple[str, ...]:
    """Returns the names of ops that compute a scalar from aggregated gradients, such as their norm.

    Every worker can fetch these ops in a step.
    """
    behind = behind_aggregation(graph, boundary)
    in_step = {op for op in behind if len(op.outputs) == 1 and op.outputs[0].shape.rank == 0 and not edit.is_write(op)}
    return tuple(sorted(op.name for op in in_step | numbers_among(observers, behind, boundary.region)))


def min_partitions(meta_graph: tf.MetaGraphDef, full_name: str, full_shape: tuple[int, ...]) -> int | None:
    """Returns the minimum number of pieces that `get_partitioner` requested for a variable, or None if the variable did
    not use `get_partitioner`."""
    for serialized in meta_graph.collection_def[PARTITIONERS].bytes_list.value:
        mark = json.loads(serialized)
        scope = f"{mark['scope']}/" if mark["scope"] else ""
        if full_name.startswith(scope) and tuple(mark["shape"]) == full_shape:
            return int(mark["min_partitions"])
    return None
