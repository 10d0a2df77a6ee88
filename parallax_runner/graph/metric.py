"""Metrics of all kinds of models: sums over examples that are added up across ranks, and functions of these sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.config.objective import Direction
from parallax_runner.errors import CaptureError
from parallax_runner.graph.returned import OUTPUT_NAME
from parallax_runner.graph.single_device_graph import MetricSums

# Computes a number from the sums. Each sum is a float64 array.
Result = Callable[[Sequence[Any]], float]


@dataclass(frozen=True)
class Metric:
    """A metric of a model.

    `sums` are numeric tensors of one batch, with any shape. The sums of all batches on all ranks are added up, and
    `result` computes the metric from the totals. `direction` states whether lower or higher values are
    better, or is None if that is unknown.
    """

    sums: tuple[Any, ...]
    result: Result
    direction: Direction | None

    def __tf_flatten__(self) -> tuple[Any, Any]:
        """Lets a traced function return metrics: TensorFlow extracts the tensors and replaces them with its own."""
        return (self.result, self.direction), self.sums

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, leaves: Any) -> Metric:
        return cls(tuple(leaves), *metadata)


@dataclass(frozen=True)
class StepSums:
    """The sums of several metrics.

    All `tensors` belong to one graph. `results` converts the totals of these tensors over all batches to values by
    metric name. `directions` maps metric names to directions. `last` are scalars of which the mean over the ranks in
    the last step counts; `results` takes these means too.
    """

    tensors: tuple[Any, ...]
    results: Callable[..., dict[str, float]]
    directions: Mapping[str, Direction | None]
    last: tuple[Any, ...] = ()

    @property
    def every(self) -> tuple[Any, ...]:
        """All tensors that a step computes."""
        return (*self.tensors, *self.last)


def checked_metrics(returned: Any, key: str = "metrics") -> dict[str, Metric]:
    """Returns the model's value for `key`. Raises CaptureError unless the value is a dict of metrics by name."""
    if not isinstance(returned, Mapping):
        raise CaptureError(f"the model's {key} must be a dict of metrics by name, not {returned!r}")
    for name, metric in returned.items():
        if not isinstance(name, str) or not OUTPUT_NAME.fullmatch(name):
            raise CaptureError(
                f"the name of the metric {name!r} (in {key}) must be a letter followed by letters, digits and «_»"
            )
        if name == "loss":
            raise CaptureError(
                f"the model's {key} contain «loss», which is always reported: give the metric another name"
            )
        if not isinstance(metric, Metric):
            raise CaptureError(
                f"the model's metric «{name}» (in {key}) must be created with parallax_runner.metrics, for example "
                f"metrics.mean(values), not {metric!r}"
            )
    return dict(returned)


def step_sums(metrics: Mapping[str, Metric]) -> StepSums | None:
    """Returns the sums of these metrics, or None if there are none."""
    if not metrics:
        return None
    tensors = tuple(tensor for metric in metrics.values() for tensor in metric.sums)

    def results(sums: Sequence[Any], last: Sequence[float] = ()) -> dict[str, float]:
        found, first = {}, 0
        for name, metric in metrics.items():
            found[name] = float(metric.result(sums[first : first + len(metric.sums)]))
            first += len(metric.sums)
        return found

    return StepSums(tensors, results, {name: metric.direction for name, metric in metrics.items()})


def named_in_graph(sums: StepSums | None, tensors: Sequence[Any], name: str) -> MetricSums | None:
    """Adds the sums to the default graph as separate ops whose names start with `name`.

    Returns the metrics with the names of these ops' outputs. Later changes to the graph do not change these names. The
    ops read `tensors`, which replace `sums.every`.
    """
    if sums is None:
        return None
    names = [tf.identity(tensor, name=f"{name}/{number}").name for number, tensor in enumerate(tensors)]
    number = len(sums.tensors)
    return MetricSums(tuple(names[:number]), sums.results, sums.directions, last=tuple(names[number:]))
