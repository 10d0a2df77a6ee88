"""The metrics of a compiled Keras model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from parallax_runner.config.objective import Direction
from parallax_runner.graph.traced.batch_metrics import Written

# Maps the directions of Keras' own callbacks to directions of this project.
DIRECTIONS: Mapping[str | None, Direction] = {"up": "maximize", "down": "minimize"}


def directions_of(model: Any, keys: Iterable[str]) -> dict[str, Direction | None]:
    """Returns for each key of a step's logs, except the loss, whether higher or lower values are better, or None if
    that is unknown."""
    metrics = metrics_of(model)
    return {key: _direction_of(key, metrics) for key in keys if key != "loss"}


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
