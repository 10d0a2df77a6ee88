"""Marks the divisors of the losses of a Keras model while its training step is traced (docs/design/0087).

Keras' reduction of a loss is `sum / divisor`. A mark is an Identity op, so that the step of one device computes the
same. If several ranks train together, rewriting gives each mark the value that makes the loss exact over all ranks.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias
from unittest import mock

import tensorflow as tf

from parallax_runner.graph.seeds import draws
from parallax_runner.graph.single_device_graph import Divisor, DivisorKind

KIND, TERM = "_parallax_divisor", "_parallax_loss_term"
KERAS_LOSS, KERAS_LAYER = "keras.src.losses.loss", "keras.src.layers.layer"
SUMS = ("sum", "none", None)
MEANS = ("sum_over_batch_size", "mean")
MEAN_OF_WEIGHTS = "mean_with_sample_weight"
OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
# Marks a divisor.
Marking: TypeAlias = Callable[[Any], Any]
VALUES_OF_VARIABLES = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")


@contextmanager
def divisors_marked(graph: Any, *, are_decided: bool = True) -> Iterator[None]:
    """Marks the divisors of Keras losses, and of the losses that layers add, in the trace `graph` during the `with`
    block. Losses in loops and branches are left as they are.

    If the marks are not decided, a trial must show that they count, because the script combines the losses. The losses
    of `tf.nn.compute_average_loss` are then marked as well.
    """
    marks = _Marks(graph, are_decided=are_decided)
    with ExitStack() as stack:
        if not are_decided:
            average = tf.autograph.experimental.do_not_convert(marks.average)
            stack.enter_context(mock.patch.object(tf.nn, "compute_average_loss", average))
        if "keras" in sys.modules:
            stack.enter_context(marks.of_keras())
        yield


def divisors_in(graph: Any) -> tuple[Divisor, ...]:
    """Returns the marks in a graph, except for those that ranks cannot sum up, because they depend on variables or on
    random draws."""
    marks = [(op, _divisor_of(op)) for op in graph.get_operations()]
    return tuple(one for op, one in marks if one is not None and _can_be_summed(op, one))


def with_sums(divisors: Iterable[Divisor], sums: Collection[int]) -> tuple[Divisor, ...]:
    """Returns the divisors that rewriting replaces. `sums` are the numbers of the losses that a trial has shown to be
    sums."""
    return tuple(
        dataclasses.replace(one, kind=one.kind.decided)
        for one in divisors
        if one.kind == one.kind.decided or one.term in sums
    )


def _divisor_of(op: Any) -> Divisor | None:
    if op.type != "Identity":
        return None
    try:
        kind = op.get_attr(KIND).decode()
    except ValueError:  # it is not a mark
        return None
    return Divisor(op.outputs[0].name, DivisorKind(kind), op.get_attr(TERM))


def _can_be_summed(op: Any, divisor: Divisor) -> bool:
    if divisor.kind.decided != DivisorKind.COUNT:
        return True
    return not any(one.type in VALUES_OF_VARIABLES or draws(one.node_def) for one in _values_behind(op))


def _values_behind(op: Any) -> Iterator[Any]:
    """Yields the ops whose values determine the value of `op`. What has only its shape taken does not."""
    waiting, seen = [op], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        yield one
        if one.type not in OF_SHAPES:
            waiting += [tensor.op for tensor in one.inputs]


class _Marks:
    """Marks divisors in the trace `graph`, with the numbers of their losses."""

    def __init__(self, graph: Any, *, are_decided: bool) -> None:
        self._graph, self._are_decided = graph, are_decided
        self._reduction: Callable[..., Any] = _no_keras
        self._average = tf.nn.compute_average_loss
        self._number = itertools.count()

    @contextmanager
    def of_keras(self) -> Iterator[None]:
        """Marks what Keras reduces, and what its layers add."""
        loss, layer = sys.modules[KERAS_LOSS], sys.modules[KERAS_LAYER].Layer
        self._reduction, original = loss.reduce_weighted_values, layer.add_loss

        def add_loss(this: Any, added: Any) -> None:
            term = next(self._number)
            original(this, tf.nest.map_structure(lambda one: self._divided_if_sum(one, term), added))

        with (
            mock.patch.object(loss, "reduce_weighted_values", self.reduce),
            mock.patch.object(layer, "add_loss", add_loss),
        ):
            yield

    def average(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for `tf.nn.compute_average_loss`."""
        term = next(self._number)
        return self._divided_if_sum(self._average(*args, **kwargs), term)

    def reduce(
        self, values: Any, sample_weight: Any = None, mask: Any = None, reduction: Any = MEANS[0], dtype: Any = None
    ) -> Any:
        """Stands in for Keras' `reduce_weighted_values`."""
        term = next(self._number)
        original = functools.partial(self._reduction, values, sample_weight, mask, reduction, dtype)
        if not self._is_traced:
            return original()
        if not tf.convert_to_tensor(values).shape.rank:
            return self._divided_if_sum(original(), term)
        if reduction in SUMS:
            return self._sum(original(), reduction, term)
        count = DivisorKind.COUNT if self._are_decided else DivisorKind.COUNT_IF_SUM
        if mask is not None and reduction in MEANS:
            return _mean_of_valid(values, sample_weight, mask, dtype, functools.partial(mark, kind=count, term=term))
        if reduction == MEAN_OF_WEIGHTS and (mask is not None or sample_weight is not None):
            return _mean_of_weights(values, sample_weight, mask, dtype, functools.partial(mark, kind=count, term=term))
        return original()

    def _sum(self, total: Any, reduction: Any, term: int) -> Any:
        """Returns the sum, or each value if the loss has no reduction. A script that combines losses itself also
        reduces these values, in a way that only a trial shows."""
        if self._are_decided:
            divisor = mark(tf.ones([], total.dtype), DivisorKind.ONE, term)
            return total / divisor if reduction == "sum" else _with_gradient_divided(total, divisor)
        return self._divided_if_sum(total, term) if reduction == "sum" else total

    def _divided_if_sum(self, loss: Any, term: int) -> Any:
        """Returns the loss, divided by a mark of which a trial decides whether it counts."""
        is_here = isinstance(loss, tf.Tensor) and getattr(loss, "graph", None) is self._graph
        if not (is_here and self._is_traced and loss.dtype.is_floating):
            return loss
        return loss / mark(tf.ones([], loss.dtype), DivisorKind.ONE_IF_SUM, term)

    @property
    def _is_traced(self) -> bool:
        """Whether ops are added to the trace itself, not to a loop or a branch."""
        return tf.compat.v1.get_default_graph() is self._graph


def mark(divisor: Any, kind: DivisorKind, term: int) -> Any:
    """Returns the divisor, marked with a kind and the number of its loss."""
    marked = tf.identity(divisor, name="divisor_of_loss")
    marked.op._set_attr(KIND, tf.compat.v1.AttrValue(s=kind.value.encode()))
    marked.op._set_attr(TERM, tf.compat.v1.AttrValue(i=term))
    return marked


def _no_keras(*given: Any) -> Any:
    raise AssertionError("Keras was not loaded when the trace began")


def _with_gradient_divided(values: Any, divisor: Any) -> Any:
    """Returns the values, with a gradient that is divided by `divisor`. Keras shows the mean of these values, but
    trains with the gradient of their sum."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def unchanged(given: Any) -> tuple[Any, Callable[[Any], Any]]:
        return tf.identity(given), lambda gradient: gradient / divisor

    return unchanged(values)


def _mean_of_valid(values: Any, sample_weight: Any, mask: Any, dtype: Any, marked: Marking) -> Any:
    """Returns the sum of the weighted values where the mask is set, divided by the number of these values."""
    weighted, _ = _weighted(values, sample_weight, mask, dtype)
    is_valid = tf.cast(mask, weighted.dtype)
    part = tf.math.divide_no_nan(tf.reduce_sum(is_valid), tf.cast(tf.size(is_valid), weighted.dtype))
    divisor = part * tf.cast(tf.size(weighted), weighted.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(weighted), marked(divisor))


def _mean_of_weights(values: Any, sample_weight: Any, mask: Any, dtype: Any, marked: Marking) -> Any:
    """Returns the sum of the weighted values, divided by the sum of the weights."""
    weighted, weights = _weighted(values, sample_weight, mask, dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(weighted), marked(tf.reduce_sum(weights)))


def _weighted(values: Any, sample_weight: Any, mask: Any, dtype: Any) -> tuple[Any, Any]:
    """Returns the weighted values and the weights, as Keras' `reduce_weighted_values` computes them if it does not
    divide by the mask."""
    from keras import ops

    loss = sys.modules[KERAS_LOSS]
    values = ops.convert_to_tensor(values, dtype=dtype)
    given = None if sample_weight is None else ops.convert_to_tensor(sample_weight, dtype=dtype)
    valid = None if mask is None else ops.convert_to_tensor(mask, dtype=dtype)
    weights = ops.cast(loss.apply_mask(given, valid, dtype=values.dtype, reduction="sum"), values.dtype)
    values, weights = loss.squeeze_or_expand_to_same_rank(values, weights)
    return values * weights, weights
