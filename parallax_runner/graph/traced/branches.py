"""Inlines the branches of an optimizer. A write in a branch takes effect only if the condition of the branch is true.

Optimizers put updates into `tf.cond` to scale the loss, to accumulate gradients, and to overwrite variables with their
averages. A branch is a function, and a variable that a function writes can be neither sharded nor placed on a server.
Inlined branches consist of ordinary ops. If a branch is not taken, its writes keep the current values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.python.framework import func_graph, smart_cond
from tensorflow.python.ops import cond as cond_module

from parallax_runner.errors import CaptureError
from parallax_runner.graph import edit

# The position of the written value among an op's inputs, first for ops that add to a variable, then for ops that set
# it.
_ADDED = {"AssignAddVariableOp": 1, "AssignSubVariableOp": 1, "ResourceScatterAdd": 2, "ResourceScatterSub": 2}
_SET = {"AssignVariableOp": 1, "ResourceScatterUpdate": 2}


class StepGraph(func_graph.FuncGraph):
    """The graph in which a step, or an optimizer's formula, is traced. It tracks the optimizer branches that are being
    traced."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._conditions: list[Any] = []

    def _create_op_internal(self, op_type: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self._conditions and edit.writes(op_type):
            inputs = self._where_taken(op_type, list(inputs))
        return super()._create_op_internal(op_type, inputs, *args, **kwargs)

    def branch(self, condition: Any, function: Callable[[], Any]) -> Any:
        """Inlines the function of a branch and returns its result."""
        self._conditions.append(condition)
        try:
            return function()
        finally:
            self._conditions.pop()

    @property
    def depth(self) -> int:
        """Returns the number of branches around the ops that are being traced."""
        return len(self._conditions)

    def chosen(self, value: Any, present: Any, *, outside: int) -> Any:
        """Returns `value` where the traced branches are taken, and `present` elsewhere.

        The first `outside` branches do not count.
        """
        inner = self._conditions[outside:]
        if not inner:
            return value
        return tf.where(_all_true(inner), value, present)

    def _where_taken(self, op_type: str, inputs: list[Any]) -> list[Any]:
        conditions, self._conditions = self._conditions, []
        try:
            taken = _all_true(conditions)
            if op_type in _ADDED:
                at = _ADDED[op_type]
                inputs[at] = tf.where(taken, inputs[at], tf.zeros([], inputs[at].dtype))
            elif op_type in _SET:
                at = _SET[op_type]
                inputs[at] = tf.where(taken, _one_number(inputs[at]), _present(op_type, inputs))
            else:
                raise CaptureError(
                    f"an optimizer uses {op_type} inside a branch, which cannot be inlined: use assign, assign_add or "
                    "assign_sub there"
                )
            return inputs
        finally:
            self._conditions = conditions


def _all_true(conditions: list[Any]) -> Any:
    return conditions[0] if len(conditions) == 1 else tf.reduce_all(tf.stack(conditions))


def _one_number(value: Any) -> Any:
    """Returns the scalar that fills a tensor, such as the zero that resets a sum, because a scalar needs no sharding.

    Other tensors are returned unchanged.
    """
    if value.op.type == "Fill":
        return value.op.inputs[1]
    if value.op.type == "Const" and value.shape.rank:
        array = tf.get_static_value(value)
        if array.size and (array == array.flat[0]).all():
            return tf.constant(array.flat[0], value.dtype)
    return value


def _present(op_type: str, inputs: list[Any]) -> Any:
    if op_type == "AssignVariableOp":
        return tf.raw_ops.ReadVariableOp(resource=inputs[0], dtype=inputs[1].dtype)
    return tf.raw_ops.ResourceGather(resource=inputs[0], indices=inputs[1], dtype=inputs[2].dtype)


@contextmanager
def in_line() -> Iterator[None]:
    """Inlines each `tf.cond` that a Keras optimizer creates in a `StepGraph` during the `with` block, and no other
    `tf.cond`."""
    from keras.src import backend
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    optimizers_at_work = 0
    original = cond_module.cond

    def cond(pred: Any, true_fn: Any = None, false_fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        is_known = isinstance(pred, bool) or smart_cond.smart_constant_value(pred) is not None
        if not optimizers_at_work or is_known or not isinstance(graph, StepGraph):
            return original(pred, true_fn, false_fn, *args, **kwargs)
        pred = tf.convert_to_tensor(pred)
        taken, other = graph.branch(pred, true_fn), graph.branch(tf.logical_not(pred), false_fn)
        return tf.nest.map_structure(lambda one, two: one if one is None else tf.where(pred, one, two), taken, other)

    def noted(function: Any) -> Any:
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            nonlocal optimizers_at_work
            if not optimizer.built and trainable_variables is not None:
                # Its variables must outlive the trace, and have the names that they have in untouched Keras.
                with tf.init_scope(), backend.name_scope(optimizer.name, caller=optimizer):
                    optimizer.build(list(trainable_variables))
            optimizers_at_work += 1
            try:
                return function(optimizer, grads, trainable_variables)
            finally:
                optimizers_at_work -= 1

        return apply

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(cond_module, "cond", cond))
        for kind in (BaseOptimizer, LossScaleOptimizer):
            stack.enter_context(mock.patch.object(kind, "apply", noted(kind.apply)))
        yield
