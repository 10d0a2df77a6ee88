"""The first half of the driver: config → data → captured graph → analysis → plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parallax_runner.checkpoints.warm_start import WarmStart
from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.objective import Goal
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.worker_numbers import worker_numbers
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.evaluated import evaluated
from parallax_runner.data.shares import as_trained
from parallax_runner.driver import loss_check, partition_search, report, validation
from parallax_runner.driver.batch_size import with_batch_size
from parallax_runner.driver.cost_model import constants_of
from parallax_runner.driver.goal import goal_of
from parallax_runner.driver.hand_over import shipment_of
from parallax_runner.driver.held_bytes import with_notes_on_held_bytes
from parallax_runner.driver.make_plan import advice_on, measure, measured_rows, plan_run
from parallax_runner.driver.memory_note import with_memory
from parallax_runner.driver.own_optimizer import without_optimizer
from parallax_runner.driver.request import Request
from parallax_runner.driver.run_summary import global_batch
from parallax_runner.driver.warm_start import with_warm_start
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.plan import plan as plans
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.process.stage_times import stage

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph
    from parallax_runner.shipment.shipment import Shipment


@dataclass(frozen=True)
class PlannedRun:
    """A run whose plan is made.

    `config` is the configuration with what the data and the graph have decided. `shipment` is what the workers get.
    `measured` describes the rows that steps touch, or is None. `goal` is the metric by which runs are compared.
    `warm_start` is what the run takes from the checkpoint of another run, or None.
    """

    config: RunConfig
    shipment: Shipment
    plan: Plan
    measured: Measured | None
    goal: Goal
    warm_start: WarmStart | None = None

    @property
    def single(self) -> SingleDeviceGraph:
        """The captured graph."""
        return self.shipment.single

    @property
    def dataset(self) -> Dataset:
        """The data of the run."""
        return self.shipment.dataset


def planned_run(request: Request) -> PlannedRun:
    """Loads the data, captures the graph and makes the plan. Prints notes about all of them.

    Raises ParallaxError for an error in the configuration, data, graph or plan.
    """
    config, captured, dataset = _captured(request)
    captured, notes_on_losses = loss_check.checked(config, captured, dataset)
    shipment = shipment_of(config, captured, dataset)
    single = shipment.single  # its initial values are apart
    report.tell_notes(single.notes)
    config = without_optimizer(config, single)
    measured = measured_rows(config, shipment, request.run_dir, request.interrupts)
    plan = partition_search.planned(config, plan_run(config, single, measured=measured), single)
    plan = validation.planned(config, plan, single, dataset)
    report.tell_notes(notes_on_losses)
    plan, warm = with_warm_start(config, plan, single, dataset)
    plan = _with_worker_numbers(config, plan, is_keras=captured.keras_model is not None)
    plan = with_memory(config, plan, is_keras=captured.keras_model is not None)
    plan = with_notes_on_held_bytes(config, plan, shipment, is_keras=captured.keras_model is not None)
    goal = goal_of(config, single, dataset)
    if plan.servers:
        from parallax_runner.train.protocols import check_protocol

        check_protocol(config.comm.ps.protocol)
    request.state.summary = dataclasses.replace(
        request.state.summary,
        comm=plan.comm,
        workers=plan.workers,
        servers=plan.servers,
        global_batch=global_batch(config, plan.contributors),
    )
    return PlannedRun(config, shipment, plan, measured, goal, warm)


def _with_worker_numbers(config: RunConfig, plan: Plan, *, is_keras: bool) -> Plan:
    """Returns the plan with the numbers of workers that the run may have, and a note about them. Raises ConfigError if
    the learning rate must change with the number, but is a variable of a Keras model."""
    numbers = worker_numbers(config)
    if not numbers:
        return plan
    if is_keras and config.train.scale_lr != "none":
        raise ConfigError(
            "the optimizer of a Keras model has its own learning rate, which is part of checkpoints"
        ).about(
            Setting.of("train.scale_lr", config.train.scale_lr), remedy="Omit this key, or set train.on_resize=global"
        )
    note = f"after losses and returns of workers, the run continues with {_listed(numbers)} workers"
    return dataclasses.replace(plan, worker_numbers=numbers, notes=(*plan.notes, note))


def _listed(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last


@stage("show the plan")
def show_plan(request: Request, planned: PlannedRun) -> None:
    """Writes `plan.json`, and shows the plan unless another plan will follow."""
    config, plan = planned.config, planned.plan
    plans.save(plan, request.run_dir / plans.FILE_NAME)
    if not frozen.shows_progress(config) or partition_search.is_due(config, plan):
        return
    if not action_of(config).explains_plan:
        report.show_plan(plan, constants=None, advice=None)
        return
    advice = advice_on(plan, config, planned.single, planned.measured)
    report.show_plan(plan, constants=constants_of(config), advice=advice)


def measured_alone(request: Request) -> Measured:
    """Returns the measurement of the rows that steps touch, without a plan."""
    config, single, dataset = _captured(request)
    return measure(config, shipment_of(config, single, dataset), request.run_dir, request.interrupts)


def _captured(request: Request) -> tuple[RunConfig, SingleDeviceGraph, Dataset]:
    dataset = evaluated(request.config, as_trained(request.config, request.source.load_dataset(request.config)))
    config = with_batch_size(request.config, dataset)
    return config, request.source.build_graph(config, dataset), dataset
