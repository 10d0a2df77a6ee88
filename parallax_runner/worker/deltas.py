"""A rank's part in saving deltas, according to the configuration."""

from __future__ import annotations

from pathlib import Path

from parallax_runner.analysis.variable_info import GradientKind
from parallax_runner.analysis.variables_read import variables_read
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.checkpoints.delta_ops import Contents, changes_of
from parallax_runner.checkpoints.delta_save import DeltaSave
from parallax_runner.checkpoints.delta_saver import DeltaSaver
from parallax_runner.config.schema import CkptConfig, RunConfig
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.rewrite.distributed_graph import DistributedGraph


def deltas_of(
    config: RunConfig,
    checkpoints: CheckpointOps,
    distributed: DistributedGraph,
    plan: Plan,
    single: SingleDeviceGraph,
) -> DeltaSaver | None:
    """Returns the object that handles this rank's part of the deltas, or None if the run saves no deltas or this rank
    has no part in them. Adds ops to the graph, so call this before the graph is finalized."""
    ckpt = config.ckpt
    has_part = checkpoints.is_chief or checkpoints.own_rows is not None
    if not ckpt.enabled or ckpt.delta_steps is None or not has_part:
        return None
    contents = contents_of(plan, single)
    changes = changes_of(distributed, contents)
    return DeltaSaver(
        writer=DeltaSave(checkpoints, changes, contents, trained_names(single), ckpt.copy_bytes),
        folder=Path(ckpt.folder),
        delta_steps=ckpt.delta_steps,
        is_chief=checkpoints.is_chief,
        base=_own_start(ckpt),
    )


def contents_of(plan: Plan, single: SingleDeviceGraph) -> Contents:
    """Returns what the deltas of a run have of its variables.

    A slot that validation or the served outputs read, such as an average of weights, is a variable like any other.
    """
    full_names = {variable.name: variable.full_name for variable in single.variables}
    evaluated = (*single.fetched_in_validation, *single.outputs.values())
    read = set(variables_read(single, evaluated))
    tables, slots = set[str](), set[str]()
    for one in plan.variables:
        of_variable = {full_names[slot] for slot in one.slots}
        slots |= of_variable - read
        if one.gradient == GradientKind.SPARSE.value:
            tables |= {full_names[one.name], *(of_variable & read)}
    return Contents(frozenset(tables), frozenset(slots))


def trained_names(single: SingleDeviceGraph) -> frozenset[str]:
    """Returns the full names of the variables that must be finite in a checkpoint: those that are trained."""
    trained = {gradient.variable for gradient in single.gradients}
    return frozenset(variable.full_name for variable in single.variables if variable.name in trained)


def _own_start(ckpt: CkptConfig) -> Path | None:
    """Returns the checkpoint from which the run has resumed, if it is in the run's own folder."""
    start, folder = Path(ckpt.resume), Path(ckpt.folder)
    return start if ckpt.resume != "never" and start.parent == folder else None
