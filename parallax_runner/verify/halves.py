"""Splits a training step in two at its raw gradients, so that every op runs in exactly one half.

The first half is everything that does not depend on a raw gradient: the forward and the backward pass, random draws,
input pipelines, and updates of variables such as batch-norm statistics. The second half depends on raw gradients:
post-processing, the update ops and all ops that must run after these ops. If the second half reads a value of the first
half, that value is *frozen*: the first half computes the value, which is then fed to the second half. As a result, no
op draws a random number, consumes data or assigns a variable twice, and no value of the forward pass is computed from
variables that the same half is updating.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.errors import ParallaxError
from parallax_runner.graph.single_device_graph import Gradient


@dataclass(frozen=True)
class Halves:
    """The boundary between the two halves, as sorted names.

    `frozen` are tensors that the first half computes and that are fed to the second half. `handles` are tensors that
    refer to resources (variables, tables, iterators), which both halves share. `finished` are ops of the first half
    that ops of the second half wait for. `late_loss` is true if the loss belongs to the second half, because it is
    ordered after the updates.
    """

    frozen: tuple[str, ...]
    handles: tuple[str, ...]
    finished: tuple[str, ...]
    late_loss: bool


def split(graph: tf.Graph, *, train_op: str, loss: str, gradients: Iterable[Gradient]) -> Halves:
    """Finds the halves of the step that runs `train_op` and fetches `loss`.

    Raises ParallaxError if the step cannot be split: no gradient reaches the train op, or the second half needs a value
    that can be neither fetched (it is inside a loop or a branch) nor computed again (its op draws or keeps state).
    """
    boundary = frozenset(name for gradient in gradients for name in (gradient.values, gradient.indices) if name)
    train, loss_op = graph.get_operation_by_name(train_op), graph.get_tensor_by_name(loss).op
    before = _needed_by([graph.get_tensor_by_name(name).op for name in boundary])
    step = _needed_by([train, loss_op])
    early = sorted(op.name for op in before if op.type.startswith(("ResourceApply", "ResourceSparseApply")))
    if early:
        raise ParallaxError(
            f"«{early[0]}» updates a variable before a gradient of the same step is computed. Such a step has no point "
            "at which all raw gradients exist, so it cannot be verified"
        )
    depth = _depths(graph)
    after = _after(boundary, before=before, step=step, depth=depth)
    if train not in after:
        raise ParallaxError(f"no raw gradient reaches the train op «{train_op}»")
    for op in sorted(after & before, key=lambda op: op.name):
        if op.op_def.is_stateful or any(tensor.name in boundary for tensor in op.inputs):
            raise ParallaxError(
                f"the update ops need the value of «{op.name}» ({op.type}), which the forward or backward pass "
                "computes inside a loop or a branch. The value cannot be fetched there, and a second run of the op "
                "would draw, read or assign twice. Return the value from the loop or branch, and use it outside"
            )
    read = {tensor for op in after for tensor in op.inputs if tensor.op not in after and tensor.name not in boundary}
    return Halves(
        frozen=tuple(sorted(tensor.name for tensor in read if not _is_handle(tensor))),
        handles=tuple(sorted(tensor.name for tensor in read if _is_handle(tensor))),
        finished=tuple(sorted({needed.name for op in after for needed in op.control_inputs if needed not in after})),
        late_loss=loss_op in after,
    )


def _after(
    boundary: frozenset[str], *, before: set[tf.Operation], step: set[tf.Operation], depth: dict[tf.Operation, int]
) -> set[tf.Operation]:
    """Returns the second half: ops that depend on a raw gradient, and ops that they need but whose values cannot be
    frozen."""
    consumers = defaultdict(list)
    for op in step:
        for needed in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            consumers[needed].append(op)

    found: set[tf.Operation] = set()
    stack = [op for op in step - before if any(tensor.name in boundary for tensor in op.inputs)]
    while stack:
        op = stack.pop()
        if op in found:
            continue
        found.add(op)
        if op not in before:
            stack.extend(consumer for consumer in consumers[op] if consumer not in before)
        for tensor in op.inputs:
            opaque = depth[tensor.op] > 0 or tensor.dtype.base_dtype in (tf.resource, tf.variant)
            if opaque and tensor.name not in boundary and not _is_handle(tensor):
                stack.append(tensor.op)
        stack.extend(needed for needed in op.control_inputs if depth[needed] > 0)
    return found


def _is_handle(tensor: tf.Tensor) -> bool:
    return tensor.dtype.base_dtype == tf.resource and not tensor.op.inputs


def _needed_by(starts: Iterable[tf.Operation]) -> set[tf.Operation]:
    found: set[tf.Operation] = set()
    stack = list(starts)
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack.extend(tensor.op for tensor in op.inputs)
            stack.extend(op.control_inputs)
    return found


def _depths(graph: tf.Graph) -> dict[tf.Operation, int]:
    """Returns, for each op, the number of loops and branches (made of Enter, Exit, Switch and Merge) that contain the
    op's result.

    A result at depth 0 can be fetched. A deeper result may be computed several times, or never.
    """
    needs = {}
    for op in graph.get_operations():
        needed = {tensor.op for tensor in op.inputs} | set(op.control_inputs)
        # This is the only kind of cycle: a loop's Merge reads the result of the previous iteration.
        needs[op] = {other for other in needed if op.type != "Merge" or other.type != "NextIteration"}
    consumers = defaultdict(list)
    for op, needed in needs.items():
        for other in needed:
            consumers[other].append(op)

    waiting = {op: len(needed) for op, needed in needs.items()}
    ready = [op for op, count in waiting.items() if count == 0]
    depth: dict[tf.Operation, int] = {}
    while ready:
        op = ready.pop()
        depth[op] = max((depth[other] for other in needs[op]), default=0) + _step_in(op)
        for consumer in consumers[op]:
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                ready.append(consumer)
    return depth


def _step_in(op: tf.Operation) -> int:
    if op.type == "Enter" or (op.type == "Switch" and op.inputs[1].op.type != "LoopCond"):
        return 1
    if op.type == "Exit" or (op.type == "Merge" and all(tensor.op.type != "NextIteration" for tensor in op.inputs)):
        return -1
    return 0
