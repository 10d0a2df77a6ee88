"""Decides whether a run can validate its model. A model that accepts one batch size cannot always be validated on fewer
examples."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, global_batch_of, leaves_rest_out, validates_at_least
from parallax_runner.data.shares import is_uneven_run
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.plan.plan import Plan

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def is_possible(config: RunConfig, single: SingleDeviceGraph, dataset: Dataset) -> bool:
    """Returns whether there are a validation loss and enough validation examples."""
    needs_whole_batch = leaves_rest_out(dataset) and not single.validates_any_size
    least = config.data["batch_size"] if needs_whole_batch else 1
    return single.validation_loss is not None and validates_at_least(dataset, least)


def lacks_examples(config: RunConfig, single: SingleDeviceGraph, dataset: Dataset) -> bool:
    """Returns whether the model has a validation loss but is not validated, because the validation examples are fewer
    than a batch."""
    if single.validation_loss is None or is_possible(config, single, dataset):
        return False
    return validates_at_least(dataset, 1)


def _lacks_all_examples(config: RunConfig, single: SingleDeviceGraph, dataset: Dataset) -> bool:
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
    if asked is not None and not is_possible(config, single, dataset):
        wanted = {"train.patience": config.train.patience, "train.validate_steps": asked}
        raise ConfigError(f"this run cannot be validated: {why_not(config, single, dataset)}").about(
            *[Setting.of(key, value) for key, value in wanted.items() if value is not None]
        )
    if not lacks_examples(config, single, dataset) and not _lacks_all_examples(config, single, dataset):
        return plan
    note = f"this run is not validated: {_too_few(config, dataset)}"
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


def why_not(config: RunConfig, single: SingleDeviceGraph, dataset: Dataset) -> str:
    """Returns the reason why nothing can be validated."""
    return "the model has no validation_loss" if single.validation_loss is None else _too_few(config, dataset)


def _too_few(config: RunConfig, dataset: Dataset) -> str:
    size = dataset.validation_size
    reason = str(getattr(dataset, "missing_validation", ""))
    if reason:
        return reason
    if not size:
        return "there are no validation examples"
    there = "there is 1 validation example" if size == 1 else f"there are {size} validation examples"
    return f"{there}, fewer than a batch (data.batch_size={config.data['batch_size']})"
