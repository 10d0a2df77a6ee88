"""Decides whether a run can validate its model."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, global_batch_of, validates_at_least
from parallax_runner.data.shares import is_uneven_run
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.plan.plan import Plan

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def is_possible(single: SingleDeviceGraph, dataset: Dataset) -> bool:
    """Returns whether there are a validation loss and validation examples."""
    return single.validation_loss is not None and validates_at_least(dataset, 1)


def _lacks_examples(config: RunConfig, single: SingleDeviceGraph, dataset: Dataset) -> bool:
    """Returns whether the data settings ask for validation examples, but there are none."""
    is_wanted = any(config.data.get(key) for key in ("validation_examples", "validation_path"))
    return single.validation_loss is not None and is_wanted and not validates_at_least(dataset, 1)


def planned(config: RunConfig, plan: Plan, single: SingleDeviceGraph, dataset: Dataset) -> Plan:
    """Returns the plan, with a note if nothing will be validated.

    Raises ConfigError if the configuration requests a validation that is impossible, and PlanError if the model's
    validation loss is invalid.
    """
    _check_batch(config, plan, dataset)
    if single.validation_loss is not None:
        from parallax_runner.analysis.validation import check_validation_loss

        check_validation_loss(single)
    asked = config.train.validate_steps
    if asked is not None and not is_possible(single, dataset):
        wanted = {"train.patience": config.train.patience, "train.validate_steps": asked}
        raise ConfigError(f"this run cannot be validated: {why_not(single, dataset)}").about(
            *[Setting.of(key, value) for key, value in wanted.items() if value is not None]
        )
    if not _lacks_examples(config, single, dataset):
        return plan
    note = f"this run is not validated: {_why_no_examples(dataset)}"
    return dataclasses.replace(plan, notes=(*plan.notes, note))


def _check_batch(config: RunConfig, plan: Plan, dataset: Dataset) -> None:
    """Checks the batch size if the data is a `tf.data.Dataset`, whose batches are divided among all replicas."""
    whole, size = global_batch_of(dataset), config.data["batch_size"]
    if whole is None or size * plan.replicas == whole:
        return
    largest_part = -(-whole // plan.replicas)
    if size != largest_part or not is_uneven_run(config, dataset):
        part = f" = {whole // plan.replicas}" if whole % plan.replicas == 0 else ", which is not a whole number"
        raise ConfigError(
            f"the data has batches of {whole} examples for all {plan.replicas} replicas "
            f"together; expected {whole} / {plan.replicas}{part}"
        ).about(Setting.of("data.batch_size", size))


def why_not(single: SingleDeviceGraph, dataset: Dataset) -> str:
    """Returns the reason why nothing can be validated."""
    return "the model has no validation_loss" if single.validation_loss is None else _why_no_examples(dataset)


def _why_no_examples(dataset: Dataset) -> str:
    reason = str(getattr(dataset, "missing_validation", ""))
    return reason or "there are no validation examples"
