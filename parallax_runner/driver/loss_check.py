"""Checks before the first step whether the losses of a model are means over the examples of a step, and makes those
exact that are sums."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from parallax_runner.config.cluster_size import replicas_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, why_unread
from parallax_runner.data.shares import step_examples_of
from parallax_runner.process.stage_times import stage

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import Divisor, SingleDeviceGraph


def checked(
    config: RunConfig, single: SingleDeviceGraph, dataset: Dataset
) -> tuple[SingleDeviceGraph, tuple[str, ...]]:
    """Returns the graph with the divisors of its losses decided (docs/design/0087), and notes.

    A note names each loss that makes a step of several replicas differ from a step of one device.

    Without several replicas whose gradients a step averages, for a TensorFlow 1 graph, and for a plan without rows,
    nothing is tried.
    """
    replicas = replicas_of(config) - config.comm.ps.backup_workers
    if single.loss_trial is None or replicas < 2 or not config.comm.sync or why_unread(dataset):
        return single, ()
    from parallax_runner.graph.traced.loss_divisors import with_sums
    from parallax_runner.graph.traced.loss_notes import notes_on_losses

    with stage("losses"):
        found = notes_on_losses(
            single.loss_trial,
            lambda size: dataset.train_batch(0, size),
            replicas=replicas,
            step_examples=step_examples_of(config, replicas),
            exact=_replaceable(config, single),
            is_uneven=single.is_uneven,
        )
    return dataclasses.replace(single, divisors=with_sums(single.divisors, found.sums)), found.notes


def _replaceable(config: RunConfig, single: SingleDeviceGraph) -> list[Divisor]:
    """Returns the divisors of the losses that rewriting can make exact.

    It makes none exact if a step is not the mean over all replicas. If each worker builds the graph again, it does not
    know what the trial has shown.
    """
    from parallax_runner.shipment.stored_values import python_op

    if config.comm.ps.backup_workers:
        return []
    is_shipped = python_op(single) is None
    return [one for one in single.divisors if is_shipped or one.kind == one.kind.decided]
