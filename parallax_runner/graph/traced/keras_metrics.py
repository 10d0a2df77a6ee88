"""The metrics of a compiled Keras model: the values that a step adds to the metrics' variables, and the results that
Keras computes from given sums."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from parallax_runner.config.objective import Direction
from parallax_runner.graph.metric import StepSums
from parallax_runner.graph.traced.batch_metrics import Written

# Maps the directions of Keras' own callbacks to directions of this project.
DIRECTIONS: Mapping[str | None, Direction] = {"up": "maximize", "down": "minimize"}


def sums_of(model: Any, graph: Any, written: Mapping[int, Written]) -> StepSums | None:
    """Returns the sums of the metrics that a step updates, in the order of `model.metrics`, or None if there are none.

    `graph` is the traced step, and `written` is the result of `start_anew` for that step. A metric that is not a
    function of sums is omitted.
    """
    summed = [one for one in metrics_of(model) if _is_updated(one, written) and _is_sum(one, written)]
    if not summed:
        return None
    variables = list(chain.from_iterable(metric.variables for metric in summed))
    with graph.as_default():
        tensors = tuple(_added_to(variable, written) for variable in variables)
    left_out = [one for one in metrics_of(model) if one not in summed]

    def results(sums: Sequence[Any]) -> dict[str, float]:
        return _values(model, variables, sums, left_out)

    names = results([np.zeros(tensor.shape) for tensor in tensors])
    return StepSums(tensors, results, _directions_of(names, summed))


def _directions_of(names: Iterable[str], metrics: Sequence[Any]) -> dict[str, Direction | None]:
    return {name: _direction_of(name, metrics) for name in names if name != "loss"}


def _is_updated(metric: Any, written: Mapping[int, Written]) -> bool:
    return any(id(each._value) in written for each in metric.variables)


def _added_to(variable: Any, written: Mapping[int, Written]) -> Any:
    """Returns what a step adds to a variable of a metric that is a function of sums."""
    if id(variable._value) in written:
        return written[id(variable._value)].value
    return tf.zeros(variable.shape, variable.dtype)


def _direction_of(name: str, metrics: Sequence[Any]) -> Direction | None:
    """Returns whether higher or lower values of a result are better, or None if that is unknown. The name of a
    result can begin with the name of an output, followed by the name of the metric."""
    named = [one for one in metrics if name == one.name or name.endswith(f"_{one.name}")]
    nearest = max(named, key=lambda one: len(one.name), default=None)
    return DIRECTIONS.get(getattr(nearest, "_direction", None))


def notes_of_left_out(model: Any, written: Sequence[Mapping[int, Written]]) -> tuple[str, ...]:
    """Returns a single note that names the metrics that are not reported, or an empty tuple if all are reported."""
    names = [metric.name for metric in metrics_of(model) if not all(_is_sum(metric, one) for one in written)]
    if not names:
        return ()
    return (
        "these metrics of the model are not reported, because they are not computed from sums over batches that "
        f"start at zero: {', '.join(names)}",
    )


def metrics_of(model: Any) -> list[Any]:
    """Returns each of the model's metrics once. Each compiled metric has its own entry."""
    return list({id(one): one for metric in model.metrics for one in _each(metric)}.values())


def _each(metric: Any) -> Iterator[Any]:
    from keras.src.trainers.compile_utils import CompileMetrics

    if isinstance(metric, CompileMetrics):
        yield from metric.metrics
    else:
        yield metric


def _is_sum(metric: Any, written: Mapping[int, Written]) -> bool:
    return all(written[id(one._value)].is_sum for one in metric.variables if id(one._value) in written)


def _values(model: Any, variables: Sequence[Any], sums: Sequence[Any], left_out: Collection[Any]) -> dict[str, float]:
    """Returns the values that Keras computes from these sums for all scalar metrics, under Keras' own names."""
    with ExitStack() as stack:
        stack.enter_context(tf.device("CPU:0"))
        for metric in left_out:
            stack.enter_context(mock.patch.object(metric, "result", lambda: None))
        for variable, value in zip(variables, sums, strict=True):
            variable.assign(np.asarray(value, tf.as_dtype(variable.dtype).as_numpy_dtype).reshape(variable.shape))
        values = model.get_metrics_result()
        model.reset_metrics()
    arrays = {name: np.asarray(value) for name, value in values.items() if value is not None}
    return {name: float(value.item()) for name, value in arrays.items() if value.size == 1}
