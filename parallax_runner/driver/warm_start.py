"""Reads the checkpoint that `ckpt.warm_start` names, and adds to the plan what the run takes from it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.checkpoints.checkpoint_files import read_sidecar, sidecar_path
from parallax_runner.checkpoints.warm_start import FILE_NAME, KEY, Wanted, WarmStart, notes_on, warm_start
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, numbering_of
from parallax_runner.plan.plan import Plan
from parallax_runner.process.stage_times import stage

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


@stage("read the checkpoint of the warm start")
def with_warm_start(
    config: RunConfig, plan: Plan, single: SingleDeviceGraph, dataset: Dataset
) -> tuple[Plan, WarmStart | None]:
    """Returns the plan with notes on the warm start, and what the run takes, or None if it starts otherwise.

    A checkpoint in `ckpt.dir` wins, because it means that this run has begun already.

    Raises ConfigError or CheckpointError if the checkpoint cannot be read, or does not fit.
    """
    from parallax_runner.checkpoints.checkpoint_ops import stored_in
    from parallax_runner.checkpoints.start import find_whole, newest_whole

    path, ckpt = config.ckpt.warm_start, config.ckpt
    if path is None or not ckpt.enabled:
        return plan, None
    own = None if ckpt.resume == "never" else newest_whole(Path(ckpt.folder)).prefix
    if own is not None:
        note = f"{own} is a checkpoint of this run, so {KEY}={path} is not read again"
        return dataclasses.replace(plan, notes=(*plan.notes, note)), None
    prefix = find_whole(path, Path(ckpt.folder), key=KEY).prefix
    assert prefix is not None  # find_whole raises an error if there is none
    prefix = Path(os.path.realpath(prefix.parent)) / prefix.name
    found = warm_start(str(prefix), stored_in(prefix), _wanted(plan, single), ckpt.take)
    notes = (*plan.notes, *notes_on(found), *_notes_on_vocabulary(prefix, numbering_of(dataset)))
    return dataclasses.replace(plan, notes=notes), found


def _notes_on_vocabulary(prefix: Path, numbering: str) -> list[str]:
    """Returns a sentence if the rows of the checkpoint's tables belong to other words than those of this run. A
    checkpoint of plain TensorFlow does not tell. Raises CheckpointError for a damaged sidecar."""
    if not numbering or not sidecar_path(prefix).exists():
        return []
    if read_sidecar(prefix).numbering in ("", numbering):
        return []
    return [
        "warm start: the checkpoint has another vocabulary than this run, and rows are taken by number, so a row "
        "that is taken belongs to another word; set ckpt.take.exclude to the tables of words"
    ]


def leave_warm_start(start: WarmStart | None, run_dir: Path) -> None:
    """Writes what the run takes for its workers, or removes what an earlier run in the folder has left. Raises OSError
    if that is not possible."""
    if start is None:
        (run_dir / FILE_NAME).unlink(missing_ok=True)
    else:
        start.save(run_dir)


def _wanted(plan: Plan, single: SingleDeviceGraph) -> list[Wanted]:
    """Returns the saved variables. Besides slots, scalars without a gradient belong to the optimizer: its step count,
    its learning rate, which Keras names so, and its powers of decay."""
    slots = {slot for variable in plan.variables for slot in variable.slots}
    trained = {gradient.variable for gradient in single.gradients}
    found: dict[str, Wanted] = {}
    for one in single.variables:
        is_counter = one.name not in trained and not one.full_shape
        if one.saved:
            found[one.full_name] = Wanted(
                one.full_name,
                tuple(one.full_shape),
                one.dtype,
                is_of_optimizer=one.name in slots or is_counter,
                is_set=is_counter and one.full_name.endswith("/learning_rate"),
            )
    return list(found.values())
