"""Metrics of all kinds of models: sums over examples, which ranks add up, and what makes a number of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.config.objective import Direction
from parallax_runner.errors import CaptureError
from parallax_runner.graph.returned import OUTPUT_NAME
from parallax_runner.graph.single_device_graph import MetricSums

# Turns sums, one array of float64 each, into a number.
Result = Callable[[Sequence[Any]], float]


@dataclass(frozen=True)
class Metric:
    """`sums` are tensors of one batch, numbers of any shape; those of all batches of all ranks are added up, and
    `result` makes the metric of them. `direction` says which values are better; None: nobody knows."""

    sums: tuple[Any, ...]
    result: Result
    direction: Direction | None

    def __tf_flatten__(self) -> tuple[Any, Any]:
        """A traced function may return metrics: TensorFlow takes the tensors out of them and puts its own in."""
        return (self.result, self.direction), self.sums

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, leaves: Any) -> Metric:
        return cls(tuple(leaves), *metadata)


@dataclass(frozen=True)
class StepSums:
    """The sums of several metrics: tensors of one graph, and what turns their sums over batches into values by name.
    `directions` is by name too."""

    tensors: tuple[Any, ...]
    results: Callable[[Sequence[Any]], dict[str, float]]
    directions: Mapping[str, Direction | None]


def checked_metrics(returned: Any, key: str = "metrics") -> dict[str, Metric]:
    """What a model returned as `key`. Raises CaptureError where that is not metrics by name."""
    if not isinstance(returned, Mapping):
        raise CaptureError(f"the model's {key} must be a dict of metrics by name, not {returned!r}")
    for name, metric in returned.items():
        if not isinstance(name, str) or not OUTPUT_NAME.fullmatch(name):
            raise CaptureError(
                f"the model's metric {name!r} (in {key}) must be named by letters, digits and «_», a letter first"
            )
        if name == "loss":
            raise CaptureError(f"the model's {key} have «loss», which is reported anyway: give the metric another name")
        if not isinstance(metric, Metric):
            raise CaptureError(
                f"the model's metric «{name}» (in {key}) must be made by parallax_runner.metrics, such as "
                f"metrics.mean(values), not {metric!r}"
            )
    return dict(returned)


def step_sums(metrics: Mapping[str, Metric]) -> StepSums | None:
    """The sums of these metrics; None: there are none."""
    if not metrics:
        return None
    tensors = tuple(tensor for metric in metrics.values() for tensor in metric.sums)

    def results(sums: Sequence[Any]) -> dict[str, float]:
        found, first = {}, 0
        for name, metric in metrics.items():
            found[name] = float(metric.result(sums[first : first + len(metric.sums)]))
            first += len(metric.sums)
        return found

    return StepSums(tensors, results, {name: metric.direction for name, metric in metrics.items()})


def named_in_graph(sums: StepSums | None, tensors: Sequence[Any], name: str) -> MetricSums | None:
    """The sums as ops of their own in the default graph, below `name`; `tensors` stand for theirs. What passes do to a
    step does not change the names."""
    if sums is None:
        return None
    named = [tf.identity(tensor, name=f"{name}/{number}") for number, tensor in enumerate(tensors)]
    return MetricSums(tuple(tensor.name for tensor in named), sums.results, sums.directions)
