"""The first part of `action=verify`: the driver compares the captured graph with the model's own training step, both on
one device, before it starts a worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.shares import SHARE
from parallax_runner.driver import report
from parallax_runner.driver.ended import RunEnded
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.run_state import RunState
from parallax_runner.driver.run_summary import UntouchedSummary, VerifySummary
from parallax_runner.plan.plan import Plan
from parallax_runner.process.stage_times import stage
from parallax_runner.shipment.shipment_folder import folder_of
from parallax_runner.verify.compare import PART_STEPS

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph
    from parallax_runner.verify.untouched import UntouchedComparison


def verify_capture(prepared: PreparedRun, state: RunState) -> None:
    """Compares the graph that was written for the workers with the model's own step, and prints the result. Does
    nothing for a graph that the user has built.

    Raises RunEnded with status 1 if they differ.
    """
    with stage("compare with the untouched step"):
        found = _compared(prepared)
    if found is None:
        return
    state.summary = dataclasses.replace(state.summary, untouched=_summary_of(found))
    if not found.differs:
        report.tell_notes([_told(found)])
        return
    state.summary = dataclasses.replace(
        state.summary, verification=VerifySummary(verified=False, max_difference=None), error=_difference(found)
    )
    report.leave_summary(prepared.run_dir, state.known())
    report.tell_end(state.known(), None, prepared.run_dir)
    raise RunEnded(1, state.known(), prepared.run_dir)


def _compared(prepared: PreparedRun) -> UntouchedComparison | None:
    config, source, dataset = prepared.config, prepared.source, prepared.planned.dataset
    made = source.untouched(config, dataset)
    if made is None:
        return None
    from parallax_runner.graph.traced.row_updates import SparseUpdates, sparse_updates_of
    from parallax_runner.verify.untouched import UntouchedComparison, compare_with_untouched

    if sparse_updates_of(config.model) is SparseUpdates.LAZY:
        reason = "model.sparse_updates=lazy updates other rows than plain Keras"
        return UntouchedComparison(None, left_out=reason)
    return compare_with_untouched(_as_loaded(prepared), made, _batches(config, prepared.planned.plan, dataset))


def _as_loaded(prepared: PreparedRun) -> SingleDeviceGraph:
    """Returns the graph that the workers load, or the captured graph if each worker builds it again."""
    if prepared.planned.shipment.graph_stays is not None:
        return prepared.planned.single
    from parallax_runner.shipment.graph_file import load_graph

    return load_graph(folder_of(prepared.run_dir))


def _batches(config: RunConfig, plan: Plan, dataset: Dataset) -> Iterator[Mapping[str, np.ndarray]]:
    """Yields the first replica's batches of the first steps."""
    from parallax_runner.train.feed import Feed

    feed = Feed(dataset, config.data["batch_size"], 0, plan.workers, plan.replicas_per_worker)
    for step in range(min(PART_STEPS, config.train.total_steps)):
        batch = feed.train_batches(step * feed.global_batch)[0]
        yield {name: array for name, array in batch.items() if name != SHARE}


def _summary_of(found: UntouchedComparison) -> UntouchedSummary:
    if found.comparison is None:
        return UntouchedSummary(None, None, found.left_out)
    as_json = found.comparison.as_json()
    return UntouchedSummary(as_json["ok"], as_json["max_relative"], None)


def _told(found: UntouchedComparison) -> str:
    if found.comparison is None:
        return f"the captured graph is not compared with the model's own step: {found.left_out}"
    steps = "1 step" if found.steps == 1 else f"{found.steps} steps"
    return (
        f"the captured graph equals the model's own step: on one device, every variable matches after each of {steps}; "
        f"the largest difference is {found.comparison.max_relative:.2g} of the variable's change"
    )


def _difference(found: UntouchedComparison) -> str:
    assert found.comparison is not None
    where = f"in step {found.steps}" if found.steps else "in the initial values"
    return (
        f"the captured graph differs from the model's own step on one device {where}: "
        f"{found.comparison.first_difference}; no worker was started, because a run would train another model "
        "(docs/correct-step.md)"
    )
