"""Metrics of all kinds of models: sums over examples that are added up across ranks, and functions of these sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow.compat.v1 as tf

from parallax_runner.config.objective import Direction
from parallax_runner.errors import CaptureError
from parallax_runner.graph.group_measures import GroupMeasure
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
class GroupMetric:
    """A metric of groups of examples, which is computed from the rows of all batches and not from sums over them.

    `rows` are four tensors of one batch, all [rows]: the number of the group (int64), the label (float32), the score
    (float64) and the weight (float32). `measure` computes the metric from the rows of whole groups.
    """

    rows: tuple[Any, ...]
    measure: GroupMeasure
    direction: Direction | None

    def __tf_flatten__(self) -> tuple[Any, Any]:
        """Lets a traced function return metrics, like that of `Metric`."""
        return (self.measure, self.direction), self.rows

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, leaves: Any) -> GroupMetric:
        return cls(tuple(leaves), *metadata)


# The metrics that a model can return.
AnyMetric = Metric | GroupMetric


@dataclass(frozen=True)
class StepSums:
    """The sums of several metrics.

    All `tensors` belong to one graph. `results` converts the totals of these tensors over all batches to values by
    metric name. `directions` maps metric names to directions. `last` are scalars of which the mean over the ranks in
    the last step counts; `results` takes these means too. `rows` are the rows of metrics of groups, by the name of the
    metric, and `measures` compute these metrics.
    """

    tensors: tuple[Any, ...]
    results: Callable[..., dict[str, float]]
    directions: Mapping[str, Direction | None]
    last: tuple[Any, ...] = ()
    rows: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    measures: Mapping[str, GroupMeasure] = field(default_factory=dict)

    @property
    def every(self) -> tuple[Any, ...]:
        """All tensors that a step computes."""
        return (*self.tensors, *self.last, *(tensor for one in self.rows.values() for tensor in one))


def checked_metrics(returned: Any, key: str = "metrics") -> dict[str, AnyMetric]:
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
        if not isinstance(metric, AnyMetric):
            raise CaptureError(
                f"the model's metric «{name}» (in {key}) must be created with parallax_runner.metrics, for example "
                f"metrics.mean(values), not {metric!r}"
            )
    return dict(returned)


def step_sums(metrics: Mapping[str, AnyMetric]) -> StepSums | None:
    """Returns the sums of these metrics, or None if there are none."""
    if not metrics:
        return None
    of_groups = {name: metric for name, metric in metrics.items() if isinstance(metric, GroupMetric)}
    return replace(
        _only_sums({name: metric for name, metric in metrics.items() if isinstance(metric, Metric)}),
        directions={name: metric.direction for name, metric in metrics.items()},
        rows={name: metric.rows for name, metric in of_groups.items()},
        measures={name: metric.measure for name, metric in of_groups.items()},
    )


def _only_sums(metrics: Mapping[str, Metric]) -> StepSums:
    tensors = tuple(tensor for metric in metrics.values() for tensor in metric.sums)

    def results(sums: Sequence[Any], last: Sequence[float] = ()) -> dict[str, float]:
        found, first = {}, 0
        for name, metric in metrics.items():
            found[name] = float(metric.result(sums[first : first + len(metric.sums)]))
            first += len(metric.sums)
        return found

    return StepSums(tensors, results, {})


def metrics_of_training(metrics: Mapping[str, AnyMetric], *, is_validated: bool) -> dict[str, AnyMetric]:
    """Returns the metrics that a training step computes: those of sums. Raises CaptureError if there are others and no
    validation computes them."""
    found: dict[str, AnyMetric] = {name: metric for name, metric in metrics.items() if isinstance(metric, Metric)}
    left_out = [name for name in metrics if name not in found]
    if left_out and not is_validated:
        raise CaptureError(
            f"the model's metric «{left_out[0]}» is one of groups, which only a validation computes, and this model "
            "has none: return a validation_loss, or a function for evaluation beside the training step"
        )
    return found


def joined_sums(one: StepSums | None, other: StepSums | None) -> StepSums | None:
    """Returns the sums of two sets of metrics with different names. Values of the last step come from `one` only."""
    if one is None or other is None:
        return one or other
    number = len(one.tensors)

    def results(sums: Sequence[Any], last: Sequence[float] = ()) -> dict[str, float]:
        return one.results(sums[:number], last) | other.results(sums[number:])

    return StepSums(
        (*one.tensors, *other.tensors),
        results,
        {**one.directions, **other.directions},
        one.last,
        {**one.rows, **other.rows},
        {**one.measures, **other.measures},
    )


def named_in_graph(sums: StepSums | None, tensors: Sequence[Any], name: str) -> MetricSums | None:
    """Adds the sums to the default graph as separate ops whose names start with `name`.

    Returns the metrics with the names of these ops' outputs. Later changes to the graph do not change these names. The
    ops read `tensors`, which replace `sums.every`.
    """
    if sums is None:
        return None
    names = iter([tf.identity(tensor, name=f"{name}/{number}").name for number, tensor in enumerate(tensors)])
    return MetricSums(
        tuple(itertools.islice(names, len(sums.tensors))),
        sums.results,
        sums.directions,
        last=tuple(itertools.islice(names, len(sums.last))),
        rows={one: tuple(itertools.islice(names, len(rows))) for one, rows in sums.rows.items()},
        measures=sums.measures,
    )
