"""Updates only the rows that a sparse gradient touches, with the optimizer's own formula.

Most Keras optimizers convert a sparse gradient to a dense gradient and update every row. The formula runs on only the
touched rows if it leaves all other rows bit-identical (`exact`), or if the user chooses `lazy`. While
`update_step` runs, the variable and its slots are replaced by their touched rows. The assigned values are then
scattered back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from unittest import mock

import tensorflow as tf

from parallax_runner.errors import CaptureError, Setting
from parallax_runner.graph.traced.gradients import Recorded, TapeGradient
from parallax_runner.graph.traced.row_formula import decays, slots_of, updated_rows
from parallax_runner.graph.traced.row_probe import keeps_untouched_rows, works_by_row


class SparseUpdates(StrEnum):
    """The rows that an update with a sparse gradient writes.

    EXACT: the rows that the optimizer would change with the dense gradient. LAZY: the rows in the gradient.
    """

    EXACT = "exact"
    LAZY = "lazy"


_LAZY = Setting("model.sparse_updates", SparseUpdates.LAZY)


def sparse_updates_of(options: Mapping[str, Any]) -> SparseUpdates:
    """Returns the value of `sparse_updates` in the group `model`. Raises CaptureError if the value is unknown."""
    value = options.get("sparse_updates") or SparseUpdates.EXACT
    if value not in list(SparseUpdates):
        raise CaptureError(f"expected one of {', '.join(SparseUpdates)}").about(
            Setting.of("model.sparse_updates", value)
        )
    return SparseUpdates(value)


@contextmanager
def rows_updated(mode: SparseUpdates, gradients: Sequence[Recorded]) -> Iterator[None]:
    """Makes Keras optimizers update only the touched rows during the `with` block, if `mode` allows that.

    `gradients` contains the gradients recorded so far.

    Raises CaptureError at the end of the block if `mode` is LAZY and an optimizer cannot update rows separately.
    """
    from keras.src.backend.tensorflow.optimizer import TFOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    rule = _RowRule(mode, gradients)
    update_all, decay_all = TFOptimizer._backend_update_step, TFOptimizer._apply_weight_decay
    all_finite = LossScaleOptimizer.check_finite

    def update(this: Any, grads: Sequence[Any], variables: Sequence[Any], learning_rate: Any) -> None:
        dense = []
        for grad, variable in zip(grads, variables, strict=True):
            if rule.updates_by_rows(this, grad, variable, learning_rate):
                _update_rows(this, grad, variable, learning_rate, lazily=mode is SparseUpdates.LAZY)
            else:
                dense.append((grad, variable))
        if dense:
            update_all(this, *(list(part) for part in zip(*dense, strict=True)), learning_rate)

    def decay(this: Any, variables: Sequence[Any]) -> None:
        decay_all(this, rule.decayed_in_full(this, variables))

    def finite(this: Any, grads: Sequence[Any]) -> Any:
        """Checks only the values of IndexedSlices, because the dense tensor would only add zeros."""
        return all_finite(this, [_values_of(grad) for grad in grads])

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(LossScaleOptimizer, "check_finite", finite))
        stack.enter_context(mock.patch.object(TFOptimizer, "_backend_update_step", update))
        stack.enter_context(mock.patch.object(TFOptimizer, "_apply_weight_decay", decay))
        # Keras divides gradients by `loss_scale_factor`, but IndexedSlices cannot be divided. For `global_clipnorm`,
        # Keras multiplies gradients, but the product of IndexedSlices would be dense.
        stack.enter_context(mock.patch.object(tf.IndexedSlices, "__truediv__", _divided, create=True))
        stack.enter_context(mock.patch.object(tf.IndexedSlices, "__mul__", _multiplied, create=True))
        yield
    if rule.refused:
        raise rule.refused[0]


@dataclass
class _RowRule:
    """Decides which variables an optimizer updates by rows.

    `gradients` contains the gradients recorded so far. `refused` contains the reasons why LAZY cannot be followed. They
    are raised only outside Keras' branches, because these would add text to the message.
    """

    mode: SparseUpdates
    gradients: Sequence[Recorded]
    refused: list[CaptureError] = field(default_factory=list)

    def updates_by_rows(self, optimizer: Any, grad: Any, variable: Any, learning_rate: Any) -> bool:
        """Returns whether the optimizer updates only the rows of the variable that the gradient touches."""
        if self.mode is SparseUpdates.EXACT:
            # Keras itself updates only the touched rows of variables without slots.
            has_rows = isinstance(grad, tf.IndexedSlices) and bool(slots_of(optimizer, variable))
            return has_rows and keeps_untouched_rows(optimizer, variable, learning_rate)
        if not self._is_lazy(optimizer, variable):
            return False
        hindrance = _hindrance(optimizer, grad, variable, learning_rate)
        if hindrance is not None:
            self.refused.append(hindrance)
        return not self.refused

    def decayed_in_full(self, optimizer: Any, variables: Sequence[Any]) -> Sequence[Any]:
        """Returns the variables whose rows all decay. The update of a table's rows by LAZY includes their decay."""
        if self.mode is not SparseUpdates.LAZY:
            return variables
        return [one for one in variables if not self._is_lazy(optimizer, one)]

    def _is_lazy(self, optimizer: Any, variable: Any) -> bool:
        """Returns whether the optimizer would change rows of this variable that its gradient does not touch."""
        of_variables = [one for one in self.gradients if isinstance(one, TapeGradient)]
        sparse = {one.handle_id for one in of_variables if one.indices is not None}
        if variable.handle._id not in sparse:
            return False
        return bool(slots_of(optimizer, variable)) or decays(optimizer, variable)


def _hindrance(optimizer: Any, grad: Any, variable: Any, learning_rate: Any) -> CaptureError | None:
    """Returns the reason why the optimizer cannot update the variable's rows separately, or None if it can."""
    kind = type(optimizer).__name__
    if not isinstance(grad, tf.IndexedSlices):
        return CaptureError(
            f"the gradient of «{variable.path}» is dense when {kind} uses it, perhaps because of "
            "gradient_accumulation_steps or a custom train_step"
        ).about(_LAZY, remedy="choose exact, or keep the gradient sparse")
    if not works_by_row(optimizer, variable, learning_rate):
        return CaptureError(
            f"with {kind}, the update of a row of «{variable.path}» depends on other rows, or writes other variables"
        ).about(_LAZY, remedy="choose exact, or another optimizer")
    return None


def _values_of(grad: Any) -> Any:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def _divided(slices: tf.IndexedSlices, divisor: Any) -> tf.IndexedSlices:
    values = slices.values / tf.cast(divisor, slices.values.dtype)
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)


def _multiplied(slices: tf.IndexedSlices, factor: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(slices.values * tf.cast(factor, slices.values.dtype), slices.indices, slices.dense_shape)


def _update_rows(optimizer: Any, grad: tf.IndexedSlices, variable: Any, learning_rate: Any, *, lazily: bool) -> None:
    stateful = [variable, *slots_of(optimizer, variable)]
    rows = [one._value.sparse_read(grad.indices) for one in stateful]
    after = updated_rows(optimizer, grad.values, variable, stateful, rows, learning_rate, lazily=lazily)
    for one, before, value in zip(stateful, rows, after, strict=True):
        if value is not before:
            one._value.scatter_update(tf.IndexedSlices(value, grad.indices))
