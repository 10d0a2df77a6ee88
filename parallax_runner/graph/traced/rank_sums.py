"""Marks the sums over all replicas that a model asks for while its training step is traced (docs/design/0088).

A model asks with `tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)`, as Keras'
`BatchNormalization(synchronized=True)` does. With one device, the sum is the value itself. The gradient of a sum over
the replicas is the sum of the replicas' gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from parallax_runner.graph import edit
from parallax_runner.graph.single_device_graph import RankSum
from parallax_runner.graph.traced.gradients import Recorded, TapeGradient

ATTRIBUTE = "_parallax_rank_sum"
OF_VALUES, OF_GRADIENTS = "values", "gradients"


@contextmanager
def rank_sums_marked(graph: Any, gradients: Sequence[Recorded]) -> Iterator[None]:
    """Marks the sums in the trace `graph` during the `with` block.

    Sums of `gradients`, which optimizers ask for, are left as they are, because rewriting aggregates gradients. So are
    sums in loops and branches, and other reductions.
    """
    context = distribute_lib.ReplicaContextBase
    original = context.all_reduce

    def all_reduce(this: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        is_sum = reduce_op in (tf.distribute.ReduceOp.SUM, "SUM")
        parts = tf.nest.flatten(value)
        is_traced = all(getattr(one, "graph", None) is graph for one in parts)
        is_here = is_traced and tf.compat.v1.get_default_graph() is graph
        if not is_sum or not is_here or _depend_on(parts, gradients):
            return original(this, reduce_op, value, options)
        return tf.nest.map_structure(_summed, value)

    with mock.patch.object(context, "all_reduce", all_reduce):
        yield


def _depend_on(values: Sequence[Any], gradients: Sequence[Recorded]) -> bool:
    """Returns whether a value is a slice, as sparse gradients are, or depends on a gradient."""
    if not all(isinstance(one, tf.Tensor) for one in values):
        return True
    made = {_tensor_of(one).op for one in gradients}
    return bool(made & edit.ancestors([one.op for one in values], control=False))


def _tensor_of(recorded: Recorded) -> Any:
    if isinstance(recorded, TapeGradient):
        return recorded.values
    gradient = recorded.gradient
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def rank_sums_in(graph: Any) -> tuple[RankSum, ...]:
    """Returns the marks in a graph. A mark comes after all marks that it depends on."""
    marked = {op: kind for op in graph.get_operations() if (kind := _kind_of(op)) is not None}
    ordered = edit.in_order(edit.ancestors(marked))
    return tuple(RankSum(op.outputs[0].name, is_gradient=marked[op] == OF_GRADIENTS) for op in ordered if op in marked)


def _kind_of(op: Any) -> str | None:
    if op.type != "Identity":
        return None
    try:
        kind: str = op.get_attr(ATTRIBUTE).decode()
    except ValueError:  # it is not a mark
        return None
    return kind


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _summed(value: Any) -> tuple[Any, Callable[[Any], Any]]:
    return _mark(value, OF_VALUES), lambda gradient: _mark(gradient, OF_GRADIENTS)


def _mark(value: Any, kind: str) -> Any:
    marked = tf.identity(value, name="sum_over_replicas")
    marked.op._set_attr(ATTRIBUTE, tf.compat.v1.AttrValue(s=kind.encode()))
    return marked
