"""The metrics of a compiled Keras model: the values that a step adds to the metrics' variables, and the results that
Keras computes from given sums."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
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
    updated = [one for one in metrics_of(model) if any(id(each._value) in written for each in one.variables)]
    summed = [one for one in updated if _is_sum(one, written)]
    if not summed:
        return None
    variables = [variable for metric in summed for variable in metric.variables]
    with graph.as_default():
        tensors = tuple(
            written[id(one._value)].value if id(one._value) in written else tf.zeros(one.shape, one.dtype)
            for one in variables
        )
    left_out = [one for one in metrics_of(model) if one not in summed]

    def results(sums: Sequence[Any]) -> dict[str, float]:
        return _values(model, variables, sums, left_out)

    names = results([np.zeros(tensor.shape) for tensor in tensors])
    return StepSums(tensors, results, {name: _direction_of(name, summed) for name in names if name != "loss"})


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
