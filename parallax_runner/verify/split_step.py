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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import tensorflow.compat.v1 as tf

from parallax_runner.errors import ParallaxError
from parallax_runner.graph.single_device_graph import Gradient

# Ops of TensorFlow's optimizers, and ops by which Keras' optimizers and steps of a script write variables.
UPDATES = ("ResourceApply", "ResourceSparseApply")
ASSIGNS = (
    *("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"),
    *("ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate"),
)


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
    _refuse_early_updates(before, boundary)
    after = _after(boundary, before=before, step=step, depth=_depths(graph))
    if train not in after:
        raise ParallaxError(f"no raw gradient reaches the train op «{train_op}»")
    _refuse_repeated_effects(after & before, boundary)
    read = {tensor for tensor in _inputs_from_outside(after) if tensor.name not in boundary}
    handles = {tensor for tensor in read if _is_handle(tensor)}
    return Halves(
        frozen=_sorted_names(read - handles),
        handles=_sorted_names(handles),
        finished=_sorted_names(_waits_for_outside(after)),
        late_loss=loss_op in after,
    )


def _refuse_early_updates(before: set[tf.Operation], boundary: frozenset[str]) -> None:
    """Raises ParallaxError if an op that a gradient needs updates a variable with another gradient, as in a GAN."""
    late = _reached_from([op for op in before if _reads_gradient(op, boundary)], _consumers(_needs_of(before)))
    early = sorted(op.name for op in before if op.type.startswith(UPDATES) or (op in late and op.type in ASSIGNS))
    if early:
        raise ParallaxError(
            f"«{early[0]}» updates a variable before a gradient of the same step is computed. Such a step has no point "
            "at which all raw gradients exist, so it cannot be verified"
        )


def _refuse_repeated_effects(in_both: set[tf.Operation], boundary: frozenset[str]) -> None:
    """Raises ParallaxError if an op that both halves would run has an effect, or reads a raw gradient."""
    for op in sorted(in_both, key=lambda op: op.name):
        if op.op_def.is_stateful or _reads_gradient(op, boundary):
            raise ParallaxError(
                f"the update ops need the value of «{op.name}» ({op.type}), which the forward or backward pass "
                "computes inside a loop or a branch. The value cannot be fetched there, and a second run of the op "
                "would draw, read or assign twice. Return the value from the loop or branch, and use it outside"
            )


def _inputs_from_outside(ops: set[tf.Operation]) -> set[tf.Tensor]:
    """Returns the inputs of the ops that other ops compute."""
    return {tensor for op in ops for tensor in op.inputs if tensor.op not in ops}


def _waits_for_outside(ops: set[tf.Operation]) -> set[tf.Operation]:
    """Returns the other ops that the ops wait for."""
    return {needed for op in ops for needed in op.control_inputs if needed not in ops}


def _sorted_names(elements: Iterable[tf.Tensor | tf.Operation]) -> tuple[str, ...]:
    return tuple(sorted(element.name for element in elements))


def _after(
    boundary: frozenset[str], *, before: set[tf.Operation], step: set[tf.Operation], depth: dict[tf.Operation, int]
) -> set[tf.Operation]:
    """Returns the second half: ops that depend on a raw gradient, and ops that they need but whose values cannot be
    frozen."""
    consumers = _consumers(_needs_of(step))
    found: set[tf.Operation] = set()
    stack = [op for op in step - before if _reads_gradient(op, boundary)]
    while stack:
        op = stack.pop()
        if op in found:
            continue
        found.add(op)
        if op not in before:
            stack.extend(consumer for consumer in consumers[op] if consumer not in before)
        stack.extend(_needed_inside(op, boundary, depth))
    return found


def _needed_inside(
    op: tf.Operation, boundary: frozenset[str], depth: dict[tf.Operation, int]
) -> Iterator[tf.Operation]:
    """Yields the ops that must run in the second half if `op` does, because their results cannot be frozen."""
    for tensor in op.inputs:
        if not _can_be_fed(tensor, boundary, depth):
            yield tensor.op
    for needed in op.control_inputs:
        if depth[needed] > 0:
            yield needed


def _can_be_fed(tensor: tf.Tensor, boundary: frozenset[str], depth: dict[tf.Operation, int]) -> bool:
    """Returns whether the second half can take a tensor from outside: a raw gradient, a handle, or a value that the
    first half can fetch."""
    if tensor.name in boundary or _is_handle(tensor):
        return True
    is_opaque = tensor.dtype.base_dtype in (tf.resource, tf.variant)
    return depth[tensor.op] <= 0 and not is_opaque


def _reads_gradient(op: tf.Operation, boundary: frozenset[str]) -> bool:
    return any(tensor.name in boundary for tensor in op.inputs)


def _needs(op: tf.Operation) -> set[tf.Operation]:
    """Returns the ops whose results the op reads or waits for."""
    return {tensor.op for tensor in op.inputs} | set(op.control_inputs)


def _needs_of(ops: Iterable[tf.Operation]) -> dict[tf.Operation, set[tf.Operation]]:
    return {op: _needs(op) for op in ops}


def _reached_from(
    starts: Iterable[tf.Operation], consumers: Mapping[tf.Operation, Iterable[tf.Operation]]
) -> set[tf.Operation]:
    """Returns the ops, and all ops that need them."""
    found: set[tf.Operation] = set()
    stack = list(starts)
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack.extend(consumers.get(op, ()))
    return found


def _consumers(needs: Mapping[tf.Operation, set[tf.Operation]]) -> defaultdict[tf.Operation, list[tf.Operation]]:
    """Returns the ops that need each op."""
    consumers = defaultdict(list)
    for op, needed in needs.items():
        for other in needed:
            consumers[other].append(op)
    return consumers


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
    needs = {op: _needs_in_iteration(op) for op in graph.get_operations()}
    consumers = _consumers(needs)
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


def _needs_in_iteration(op: tf.Operation) -> set[tf.Operation]:
    """Returns the ops that the op needs, without those of a loop's previous iteration.

    That is the only kind of cycle: a loop's Merge reads the result of the previous iteration.
    """
    needed = _needs(op)
    if op.type != "Merge":
        return needed
    return {other for other in needed if other.type != "NextIteration"}


def _step_in(op: tf.Operation) -> int:
    if op.type == "Enter" or (op.type == "Switch" and op.inputs[1].op.type != "LoopCond"):
        return 1
    if op.type == "Exit" or (op.type == "Merge" and all(tensor.op.type != "NextIteration" for tensor in op.inputs)):
        return -1
    return 0
