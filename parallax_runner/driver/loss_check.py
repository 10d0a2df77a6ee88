"""Checks before the first step whether the losses of a model are means over the examples of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.shares import step_examples_of
from parallax_runner.plan.plan import Plan
from parallax_runner.process.stage_times import stage

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def notes(config: RunConfig, plan: Plan, single: SingleDeviceGraph, dataset: Dataset) -> tuple[str, ...]:
    """Returns a note for each loss that makes a step of several replicas differ from a step of one device.

    Without several replicas whose gradients a step averages, and for a TensorFlow 1 graph, nothing is tried.
    """
    if single.loss_trial is None or plan.contributors < 2 or not config.comm.sync:
        return ()
    from parallax_runner.graph.traced.loss_notes import notes_on_losses

    with stage("losses"):
        return notes_on_losses(
            single.loss_trial,
            lambda size: dataset.train_batch(0, size),
            replicas=plan.contributors,
            step_examples=step_examples_of(config, plan.contributors),
        )
