"""Makes the plan of a run from its configuration and its captured graph."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.analysis.variable_info import VariableInfo
from parallax_runner.collectives.chosen import BACKENDS, choose
from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.cluster_size import devices_of_worker, spans_hosts
from parallax_runner.config.comm_mode import mode_of, name_by_cost
from parallax_runner.config.frozen import is_fit, is_of_script
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.schema import RoutesConfig, RunConfig
from parallax_runner.data.dataset import Dataset, why_unread
from parallax_runner.driver.cost_model import constants_of, cost_model
from parallax_runner.driver.exchange_backend import ALLGATHERV_NOTE, ChosenBackend, check_allgatherv, chosen_backend
from parallax_runner.driver.jobs import row_trial
from parallax_runner.errors import DataError, Setting
from parallax_runner.launch.interrupts import Interrupts
from parallax_runner.plan.comm_options import CommOptions
from parallax_runner.plan.plan import Moved, Plan
from parallax_runner.planning.advice import advice
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.planning.cut import Cut
from parallax_runner.planning.decide import decided
from parallax_runner.planning.deltas import check_deltas
from parallax_runner.planning.explain import explain
from parallax_runner.planning.growing import check_growing
from parallax_runner.planning.maps import with_maps
from parallax_runner.planning.placement import rows_matter
from parallax_runner.planning.plan_request import PlanRequest
from parallax_runner.planning.planner import make_plan
from parallax_runner.process.stage_times import stage
from parallax_runner.routes.local.planning import ROUTE as LOCAL
from parallax_runner.routes.registry import uses_collectives

if TYPE_CHECKING:
    from parallax_runner.analysis.variable_info import VariableInfo
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph
    from parallax_runner.shipment.shipment import Shipment

BALANCED_BY_BOUNDS = (
    "servers are balanced by the maximum number of rows that a step may touch; "
    "comm.measure_rows=true measures the touched rows"
)

# The graph of the last plan, and its variables.
_analyzed: tuple[weakref.ref[SingleDeviceGraph], tuple[VariableInfo, ...]] | None = None


def measured_rows(config: RunConfig, shipment: Shipment, run_dir: Path, interrupts: Interrupts) -> Measured | None:
    """Returns the measurement of the rows that steps touch. The measurement comes from a trial if the configuration
    requests a trial, otherwise from an earlier run if there was one.

    Returns None for a script that calls parallel_run, because the script feeds its own data. The plan then uses upper
    bounds for the number of rows.
    """
    if config.model["_target_"] == frozen.SCRIPT:
        return None
    mode = mode_of(config.comm)
    if mode.is_chosen_by_cost or (config.comm.measure_rows and not mode.is_one_process):
        _refuse_unread(config, shipment.dataset)
        return measure(config, shipment, run_dir, interrupts)
    return row_trial.known(config, shipment.single.fingerprint)


def _refuse_unread(config: RunConfig, dataset: Dataset) -> None:
    """Raises DataError if the dataset has no rows to measure."""
    reason = why_unread(dataset)
    if reason is not None:
        raise DataError(f"a trial measures the rows that steps touch, and {reason}.").about(
            Setting.of("comm.measure_rows", config.comm.measure_rows),
            remedy="Start the training once (action=train train.steps=1), which converts them",
        )


def measure(config: RunConfig, shipment: Shipment, run_dir: Path, interrupts: Interrupts) -> Measured:
    """Returns the measurement of the rows that steps touch, from a trial unless an earlier run has already measured
    them."""
    return row_trial.measure(config, shipment, plan_alone(config, shipment.single), run_dir, interrupts)


def plan_alone(config: RunConfig, single: SingleDeviceGraph) -> Plan:
    """Returns the plan for a single process with one replica, which does not wait for any other process."""
    from parallax_runner.graph.devices import without_tasks

    ps = dataclasses.replace(config.comm.ps, staleness=None, backup_workers=0)
    alone_routes = RoutesConfig(dense=LOCAL.name, sparse=LOCAL.name)
    alone = dataclasses.replace(
        config,
        comm=dataclasses.replace(config.comm, name=LOCAL.name, routes=alone_routes, sync=True, ps=ps),
        cluster=dataclasses.replace(config.cluster, replicas_per_worker=1),
    )
    return plan_run(alone, without_tasks(single))


@stage("plan")
def plan_run(config: RunConfig, single: SingleDeviceGraph, *, measured: Measured | None = None) -> Plan:
    """Returns the plan for this graph and cluster. `measured` describes the rows that steps touch, or is None if these
    rows are unknown."""
    from parallax_runner.analysis.devices import check_devices
    from parallax_runner.analysis.growing import growing_tables
    from parallax_runner.analysis.merged import check_merged
    from parallax_runner.analysis.skippable_updates import check_skippable_updates

    if config.train.on_nan == "skip":
        check_skippable_updates(single)
    growing = growing_tables(single)
    check_allgatherv(config)
    chosen = chosen_backend(config)
    choose(BACKENDS[chosen.name])
    request = _plan_request(config, _variables_of(config, single), single.fingerprint, measured)
    constants = constants_of(config)
    request = decided(request, cost_model(request, constants))
    plan = with_maps(growing, make_plan(request))
    notes = check_growing(growing, plan, request.variables, script_runs_steps=request.script_runs_steps)
    plan = dataclasses.replace(plan, notes=(*plan.notes, *notes))
    plan = dataclasses.replace(plan, notes=(*plan.notes, *_check_deltas(config, plan, request.variables, single)))
    check_merged(single, steps_are_common=plan.options.sync and not plan.options.backup_workers)
    tasks = {"worker": plan.workers, "ps": plan.servers} if plan.servers else {}
    moved = check_devices(
        single,
        comm=config.comm.name,
        tasks=tasks,
        worker=devices_of_worker(config.cluster),
        replicas=plan.replicas_per_worker,
        soft=config.cluster.soft_placement,
    )
    plan = dataclasses.replace(plan, moved=tuple(Moved(*one) for one in moved))
    plan = _with_note_on_backend(plan, chosen)
    if measured is None and config.model["_target_"] != frozen.SCRIPT and rows_matter(plan):
        plan = dataclasses.replace(plan, notes=(*plan.notes, BALANCED_BY_BOUNDS))
    return explain(plan, request.variables, cost_model(request, constants))


def _check_deltas(
    config: RunConfig, plan: Plan, variables: Sequence[VariableInfo], single: SingleDeviceGraph
) -> tuple[str, ...]:
    """Returns the notes on deltas. Raises PlanError if the run cannot save the deltas that it is asked for."""
    by_columns = {one.name for one in single.variables if one.shape[1:] != one.full_shape[1:]}
    delta_steps = config.ckpt.delta_steps if config.ckpt.enabled and action_of(config).goes_on_training else None
    return check_deltas(delta_steps, plan, variables, by_columns)


def _with_note_on_backend(plan: Plan, chosen: ChosenBackend) -> Plan:
    """Returns the plan with notes on what carries messages among ranks, if there are any."""
    if plan.workers == 1 or not uses_collectives(plan):
        return plan
    notes = [chosen.note, *([ALLGATHERV_NOTE] if plan.options.use_allgatherv else [])]
    return dataclasses.replace(plan, notes=(*plan.notes, *notes))


def advice_on(plan: Plan, config: RunConfig, single: SingleDeviceGraph, measured: Measured | None) -> str | None:
    """Returns the advice that `action=plan` prints last, or None if there is no advice."""
    request = _plan_request(config, _variables_of(config, single), single.fingerprint, measured)
    constants = constants_of(config)
    auto = dataclasses.replace(request, comm=name_by_cost(), preset=None)
    own, other = (cost_model(decided(one, cost_model(one, constants)), constants) for one in (request, auto))
    return advice(plan, request.variables, own, other)


def _variables_of(config: RunConfig, single: SingleDeviceGraph) -> tuple[VariableInfo, ...]:
    """Returns the result of the analysis, which several plans and the advice for the same graph share. If batches have
    several sizes, the analysis is that of the largest."""
    from parallax_runner.analysis.classify import classify
    from parallax_runner.graph.uneven_steps import with_batch_size

    global _analyzed
    if _analyzed is None or _analyzed[0]() is not single:
        largest = with_batch_size(single, config.data["batch_size"]) if single.is_uneven else single
        _analyzed = weakref.ref(single), classify(largest)
    return _analyzed[1]


def _plan_request(
    config: RunConfig, variables: Sequence[VariableInfo], fingerprint: str, measured: Measured | None
) -> PlanRequest:
    """Returns the request for the plan of a run. With comm=auto, the request does not contain the choice of routes
    yet."""
    return PlanRequest(
        comm=config.comm.name,
        variables=tuple(variables),
        fingerprint=fingerprint,
        workers=1 if mode_of(config.comm).is_one_process else config.cluster.workers,
        servers=config.cluster.servers,
        replicas_per_worker=config.cluster.replicas_per_worker,
        options=dataclasses.replace(CommOptions.of(config.comm), backend=chosen_backend(config).name),
        partitions=config.partition.num,
        cut=cut_of(config),
        measured=measured,
        preset=config.comm.routes,
        spans_hosts=spans_hosts(config.cluster),
        script_runs_steps=is_of_script(config) and not is_fit(config),
        without_mpirun=declared_by(config.cluster.launcher).without_mpirun,
    )


def cut_of(config: RunConfig) -> Cut:
    """Returns the rule for applying the configured number of shards to sparse variables."""
    return Cut.BY_BYTES if config.partition.name == "search" else Cut(config.partition.cut)
