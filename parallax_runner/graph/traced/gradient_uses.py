"""Finds what a traced step writes from its raw gradients: what optimizers get, and what the step writes by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from parallax_runner.graph.traced.loss_terms import TracedLosses

READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")
# Losses whose gradients a value depends on.
Targets = frozenset[int]


@dataclass(frozen=True)
class Uses:
    """The tensors that a step writes and that depend on raw gradients, each with the numbers of the losses of these
    gradients. `unseen` are the losses whose gradients a branch, a loop or a function can write."""

    tensors: tuple[tuple[Any, Targets], ...]
    unseen: Targets


def uses_of(traced: TracedLosses) -> Uses:
    """Returns the uses of the raw gradients of a trace."""
    reached = _reached(traced)
    given = [(tensor, reached.get(tensor.op, Targets())) for tensor in traced.applied if _is_in(traced, tensor)]
    written = [(tensor, reached[tensor.op]) for tensor in _written(traced) if tensor.op in reached]
    unseen = Targets().union(*_unseen(traced, reached))
    return Uses(tuple(one for one in [*given, *written] if one[1]), unseen)


def _is_in(traced: TracedLosses, tensor: Any) -> bool:
    return getattr(tensor, "graph", None) is traced.graph


def _reached(traced: TracedLosses) -> dict[Any, Targets]:
    """Returns the ops that depend on raw gradients, with the losses of these gradients."""
    found: dict[Any, Targets] = {}
    for raw in traced.raw:
        for tensor in filter(lambda one: one is not None, (raw.values, raw.indices)):
            found[tensor.op] = found.get(tensor.op, Targets()) | raw.targets
    for op in traced.graph.get_operations():  # each after its inputs
        targets = Targets().union(*(found.get(tensor.op, Targets()) for tensor in op.inputs))
        if targets:
            found[op] = found.get(op, Targets()) | targets
    return found


def _written(traced: TracedLosses) -> Iterator[Any]:
    """Yields the inputs of ops that write variables."""
    for op in traced.graph.get_operations():
        is_on_variable = bool(op.inputs) and op.inputs[0].dtype == tf.resource
        if is_on_variable and op.type not in READS and not _calls(op):
            yield from op.inputs[1:]


def _unseen(traced: TracedLosses, reached: Mapping[Any, Targets]) -> Iterator[Targets]:
    for op, targets in reached.items():
        if op.op_def.is_stateful and _calls(op):
            yield targets
    for tensor in traced.applied:
        if not _is_in(traced, tensor):
            yield Targets().union(*(raw.targets for raw in traced.raw))


def _calls(op: Any) -> bool:
    """Returns whether an op runs functions, such as the branches of a condition."""
    return any(one.type == "func" or one.type == "list(func)" for one in op.op_def.attr)
