"""Whether a run can validate its model, and whether it does: not with fewer examples than a batch has."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from parallax_runner.config.objective import VALIDATION_METRICS
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset
from parallax_runner.errors import ConfigError, PlanError
from parallax_runner.plan.plan import Plan

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def lacks_examples(config: RunConfig, single: SingleDeviceGraph, dataset: Dataset) -> bool:
    """Whether a model that could be validated is not, since what there is to validate on is less than a batch."""
    return single.validation_loss is not None and 0 < dataset.validation_size < config.data["batch_size"]


def planned(config: RunConfig, plan: Plan, single: SingleDeviceGraph, dataset: Dataset) -> Plan:
    """The plan with a note where nothing will be validated.

    Raises ConfigError where validation was asked for, and PlanError where the model cannot be validated as it says.
    """
    _check_batch(config, plan, dataset)
    _check_metric(single)
    if single.validation_loss is not None:
        from parallax_runner.analysis.validation import check_validation_loss

        check_validation_loss(single)
    asked = config.train.validate_steps
    if asked is not None and single.validation_loss is None:
        raise ConfigError(f"train.validate_steps={asked}: nothing can be validated: the model has no validation_loss")
    if asked is not None and dataset.validation_size < config.data["batch_size"]:
        raise ConfigError(f"train.validate_steps={asked}: nothing can be validated: {_too_few(config, dataset)}")
    if not lacks_examples(config, single, dataset):
        return plan
    note = f"nothing is validated: {_too_few(config, dataset)}"
    return dataclasses.replace(plan, notes=(*plan.notes, note))


def _check_batch(config: RunConfig, plan: Plan, dataset: Dataset) -> None:
    """A `tf.data.Dataset` has batches of all workers together."""
    whole, size = getattr(dataset, "global_batch", None), config.data["batch_size"]
    if whole is not None and size * plan.replicas != whole:
        part = f"{whole // plan.replicas}" if whole % plan.replicas == 0 else "none, since that is no whole number"
        raise ConfigError(
            f"data.batch_size={size}: the data has batches of {whole} examples for all {plan.replicas} workers "
            f"together; expected {whole} / {plan.replicas}: {part}"
        )


def _check_metric(single: SingleDeviceGraph) -> None:
    metric, known = single.validation_metric, ", ".join(VALIDATION_METRICS)
    if metric is None:
        return
    if metric not in VALIDATION_METRICS:
        raise PlanError(
            f"the model's validation_metric={metric!r} is not known; known: {known} (the exponential of the validation "
            "loss). Leave it out to compare runs by the validation loss"
        )
    if single.validation_loss is None:
        raise PlanError(
            f"the model's validation_metric={metric!r} needs a validation_loss: return one, or leave it out"
        )


def _too_few(config: RunConfig, dataset: Dataset) -> str:
    size = dataset.validation_size
    there = "there is 1 validation example" if size == 1 else f"there are {size} validation examples"
    return f"{there}, less than a batch (data.batch_size={config.data['batch_size']})"
