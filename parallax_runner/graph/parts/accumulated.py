"""Makes a step compute its gradients in several passes over parts of its batch, one after the other
(docs/design/0097)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import tensorflow.compat.v1 as tf

from parallax_runner.errors import CaptureError
from parallax_runner.graph import edit
from parallax_runner.graph.all_nodes import all_nodes
from parallax_runner.graph.edit import Op
from parallax_runner.graph.fingerprint import fingerprint_of
from parallax_runner.graph.growing.marks import is_growing
from parallax_runner.graph.parts.copies import Copy, copy_of_part, shared_tensors
from parallax_runner.graph.parts.part_ops import PartOps, gradient_names, part_ops
from parallax_runner.graph.single_device_graph import Gradient, MetricSums, SingleDeviceGraph


def accumulated(whole: SingleDeviceGraph, part: SingleDeviceGraph, parts: int) -> SingleDeviceGraph:
    """Returns the graph of a step that runs the forward and backward pass of `part` for each of `parts` parts of its
    batch, and then the update of `whole` with the mean of the gradients.

    `whole` and `part` are the graphs of the same model for a whole batch and for a part of it.

    Raises CaptureError if the step cannot be divided.
    """
    _check_alike(whole, part)
    step, of_part = part_ops(whole), part_ops(part)
    _check_region(step, whole)
    with step.graph.as_default():
        copies = _copies(whole, part, of_part, parts)
        with tf.name_scope("parts/"):
            sums = {name: _joined(whole, copies, name) for name in gradient_names(whole)}
            loss = tf.add_n([one.tensors[part.loss] for one in copies]) / parts
            metrics = _summed_metrics(whole.metrics, copies)
        writes = [op for one in copies for op in one.writes]
        _reconnect(step, sums, writes)
        train_op = tf.group(step.graph.get_operation_by_name(whole.train_op), *writes, name="parts/train_op")
    meta_graph = type(whole.meta_graph)()
    meta_graph.CopyFrom(whole.meta_graph)
    meta_graph.graph_def.CopyFrom(_without_whole_pass(step, whole))
    return dataclasses.replace(
        whole,
        meta_graph=meta_graph,
        loss=loss.name,
        train_op=train_op.name,
        gradients=tuple(_renamed(one, sums) for one in whole.gradients),
        losses=(loss.name,),
        metrics=metrics,
        divisors=(),
        fingerprint=fingerprint_of(meta_graph.graph_def),
    )


def _check_alike(whole: SingleDeviceGraph, part: SingleDeviceGraph) -> None:
    if any(is_growing(node) for node in all_nodes(whole.meta_graph.graph_def)):
        raise CaptureError(
            "a vocabulary of this model grows (GrowingEmbedding), and a step inserts the new keys of its whole batch "
            "at once, so the batch cannot be divided"
        )
    if whole.decided_divisors or whole.rank_sums:
        raise CaptureError(
            "a loss or a layer of this model needs a number of all examples of a step, such as the sum of their "
            "weights, which a pass over a part does not have"
        )
    if (whole.variables, whole.gradients, whole.loss) != (part.variables, part.gradients, part.loss):
        raise CaptureError(
            "the model's function builds other variables or gradients for another batch size, so a part of the batch "
            "cannot be trained by itself"
        )


def _check_region(step: PartOps, whole: SingleDeviceGraph) -> None:
    """Raises CaptureError if the update reads a value of the forward pass."""
    gradients = set(gradient_names(whole))
    for op in sorted(step.region, key=lambda op: op.name):
        for tensor in op.inputs:
            if tensor.op in step.repeated and tensor.name not in gradients:
                raise CaptureError(
                    f"the update «{op.name}» reads «{tensor.name}», which depends on the examples, in addition to "
                    "gradients, so the batch cannot be divided"
                )


def _copies(whole: SingleDeviceGraph, part: SingleDeviceGraph, ops: PartOps, parts: int) -> list[Copy]:
    graph = tf.get_default_graph()
    slices = {
        part.features[name]: tf.split(graph.get_tensor_by_name(tensor), parts, name=f"parts/{name}")
        for name, tensor in whole.features.items()
    }
    shared = shared_tensors(ops, graph)
    copies: list[Copy] = []
    after: Op | None = None
    for number in range(parts):
        features = {name: of_parts[number] for name, of_parts in slices.items()}
        copies.append(copy_of_part(ops, number, features, shared, after))
        with tf.name_scope(f"parts/sum_{number}/"):
            copies[-1] = _with_sums(whole, copies)
        results = [copies[-1].tensors[name].op for name in gradient_names(whole)]
        with tf.control_dependencies([*results, *copies[-1].writes]):
            after = tf.no_op(f"parts/after_{number}")
    return copies


def _with_sums(whole: SingleDeviceGraph, copies: Sequence[Copy]) -> Copy:
    """Returns the last part with the sums of its dense gradients and those before, so that one sum is kept at a
    time."""
    last = copies[-1]
    if len(copies) == 1:
        return last
    sums = {
        one.values: copies[-2].tensors[one.values] + last.tensors[one.values]
        for one in whole.gradients
        if one.indices is None
    }
    return dataclasses.replace(last, tensors={**last.tensors, **sums})


def _joined(whole: SingleDeviceGraph, copies: Sequence[Copy], name: str) -> tf.Tensor:
    """Returns the mean of a dense gradient, or the rows or ids of all parts of a sparse one."""
    kinds = {one.values: one.indices is not None for one in whole.gradients}
    is_ids = name not in kinds
    if not is_ids and not kinds[name]:
        total = copies[-1].tensors[name]
        return total / tf.cast(len(copies), total.dtype)
    rows = tf.concat([one.tensors[name] for one in copies], axis=0)
    return rows if is_ids else rows / tf.cast(len(copies), rows.dtype)


def _summed_metrics(metrics: MetricSums | None, copies: Sequence[Copy]) -> MetricSums | None:
    if metrics is None:
        return None
    sums = [tf.add_n([one.tensors[name] for one in copies]).name for name in metrics.tensors]
    last = [tf.add_n([one.tensors[name] for one in copies]) / len(copies) for name in metrics.last]
    return dataclasses.replace(metrics, tensors=tuple(sums), last=tuple(tensor.name for tensor in last))


def _reconnect(step: PartOps, sums: dict[str, tf.Tensor], writes: Sequence[Op]) -> None:
    """Makes the update read the sums, and wait for the parts instead of the pass over the whole batch."""
    for name, total in sums.items():
        edit.reconnect(step.graph.get_tensor_by_name(name), total, where=step.region.__contains__)
    done = [total.op for total in sums.values()]
    for op in step.region:
        kept = [control for control in op.control_inputs if control not in step.repeated]
        if len(kept) < len(op.control_inputs):
            edit.set_control_inputs(op, [*kept, *done, *writes])


def _renamed(gradient: Gradient, sums: dict[str, tf.Tensor]) -> Gradient:
    indices = None if gradient.indices is None else sums[gradient.indices].name
    return dataclasses.replace(gradient, values=sums[gradient.values].name, indices=indices)


def _without_whole_pass(step: PartOps, whole: SingleDeviceGraph) -> tf.GraphDef:
    """Returns the graph without the pass over the whole batch, unless validation or serving needs it."""
    names = [*whole.fetched_in_validation, *whole.outputs.values()]
    kept = edit.ancestors(step.graph.get_tensor_by_name(name).op for name in names)
    dropped = {op.name for op in _with_consumers(step.repeated - kept)}
    graph_def = step.graph.as_graph_def()
    nodes = [node for node in graph_def.node if node.name not in dropped]
    for node in nodes:
        node.attr.pop("_class", None)  # a hint that may name a dropped op
        node.input[:] = [one for one in node.input if one.removeprefix("^") not in dropped]
    remaining = tf.GraphDef(library=graph_def.library, versions=graph_def.versions)
    remaining.node.extend(nodes)
    return remaining


def _with_consumers(ops: Iterable[Op]) -> set[Op]:
    """Returns ops and all ops that read their results."""
    found: set[Op] = set()
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack += [consumer for output in op.outputs for consumer in output.consumers()]
    return found
