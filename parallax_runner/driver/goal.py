"""The metric that is used to compare runs: `train.objective` if it is set, otherwise the model's `validation_metric` if
it has one, otherwise the loss."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from parallax_runner.config.objective import PERPLEXITY, VALIDATION_LOSS, Direction, Goal
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset
from parallax_runner.driver import validation
from parallax_runner.errors import ConfigError, PlanError, Setting

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def goal_of(config: RunConfig, single: SingleDeviceGraph, dataset: Dataset) -> Goal:
    """Returns the goal of a run.

    Raises ConfigError if the configuration names a metric that validations do not compute. Raises PlanError if the
    model names such a metric.
    """
    by_model = _named_by_model(single)
    if config.train.objective is None:
        return by_model
    if not validation.is_possible(single, dataset):
        why = validation.why_not(single, dataset)
        raise ConfigError(f"this run cannot be validated: {why}").about(
            Setting.of("train.objective", config.train.objective)
        )
    return _named_by_user(config, _goals_of(single) | {by_model.metric or "loss": by_model})


def _goals_of(single: SingleDeviceGraph) -> dict[str, Goal | None]:
    """Returns a goal for each metric that a validation computes, by name. A goal is None if the metric's direction is
    unknown."""
    directions = {} if single.validation_metrics is None else single.validation_metrics.directions
    found = {name: None if direction is None else Goal(name, name, direction) for name, direction in directions.items()}
    return {"loss": VALIDATION_LOSS, **found}


def _named_by_model(single: SingleDeviceGraph) -> Goal:
    """Returns the goal that the model's `validation_metric` names."""
    name = single.validation_metric
    if name is None:
        return VALIDATION_LOSS
    if single.validation_loss is None:
        raise PlanError(
            f"the model's validation_metric={name!r} needs a validation_loss; return one, or omit the metric"
        )
    goals = {PERPLEXITY.name: PERPLEXITY} | _goals_of(single)
    if name not in goals:
        raise PlanError(
            f"the model's validation_metric={name!r} is unknown; known metrics: {', '.join(sorted(goals))} (perplexity "
            "is the exponential of the validation loss). Omit validation_metric to compare runs by the validation loss"
        )
    goal = goals[name]
    if goal is None:
        raise PlanError(f"the model's validation_metric={name!r}: it has no direction; give the metric a direction")
    return goal


def _named_by_user(config: RunConfig, goals: dict[str, Goal | None]) -> Goal:
    name, direction = str(config.train.objective), config.train.direction
    if name not in goals:
        close = difflib.get_close_matches(name.removeprefix("val_").removeprefix("validation_"), goals, n=1)
        hint = f"; did you mean train.objective={close[0]}?" if close else ""
        known = ", ".join(sorted(goals))
        raise ConfigError(f"validations of this model compute only {known}{hint}").about(
            Setting.of("train.objective", name)
        )
    goal = goals[name]
    if goal is None and direction is None:
        raise ConfigError("the direction of this metric is unknown").about(
            Setting.of("train.objective", name), remedy="add train.direction=maximize or minimize"
        )
    if goal is None:
        return Goal(name, name, _direction(direction))
    if direction not in (None, goal.direction):
        raise ConfigError(f"expected {goal.direction}, the direction of {name}").about(
            Setting.of("train.direction", direction), remedy="omit train.direction"
        )
    return goal


def _direction(value: str | None) -> Direction:
    return "maximize" if value == "maximize" else "minimize"
