"""Checkpoints of plain TensorFlow as sources of weights for `action=evaluate`, `predict` and `export`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.checkpoints.start import RESUME
from parallax_runner.checkpoints.warm_start import some
from parallax_runner.errors import CheckpointError, Setting

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def checkpoint_of(prefix: Path, single: SingleDeviceGraph, run_dir: Path) -> Path:
    """Returns the prefix of a checkpoint with all variables of the run, made from one that `tf.train.Checkpoint` or a
    `Saver` has written. Variables are taken by name, and converted to the run's dtypes. Slots and counters of the
    optimizer that are missing are zero, because no step uses them.

    Raises CheckpointError if the checkpoint cannot be read, lacks a variable of the model, or has another shape for it.
    """
    from parallax_runner.checkpoints.checkpoint_ops import stored_in
    from parallax_runner.checkpoints.converted import completed, step_in, write_converted
    from parallax_runner.checkpoints.object_names import tensors_by_name, values_of

    about = Setting.of(RESUME, prefix)
    tensors = tensors_by_name(prefix, stored_in(prefix, key=RESUME))
    wanted = {one.full_name for one in single.variables if one.saved}
    _check_names(tensors, _needed(single), wanted, about)
    known = {name: tensor for name, tensor in tensors.items() if name in wanted}
    values = completed(values_of(prefix, known, about), single.variables, about, source="checkpoint")
    return write_converted(run_dir, values, origin=prefix.absolute(), step=step_in(values))


def _check_names(found: Collection[str], needed: Collection[str], wanted: Collection[str], about: Setting) -> None:
    """Raises CheckpointError with the names that do not match if the checkpoint lacks a variable that is needed."""
    lacking = [name for name in needed if name not in found]
    if not lacking:
        return
    others = sorted(name for name in found if name not in wanted)
    more = f"; it has {some(others)}, which the model does not have" if others else ""
    raise CheckpointError(f"this checkpoint has no variable {some(lacking)} of the model{more}").about(about)


def _needed(single: SingleDeviceGraph) -> list[str]:
    """Returns the names of the variables that a source of weights must have: those of a Keras model's layers, or those
    from which a graph computes its validation and its outputs."""
    if single.keras_model is not None:
        from parallax_runner.export.keras_values import missing

        return missing((), single.keras_model)
    from parallax_runner.analysis.variables_read import variables_read

    return variables_read(single, [*single.fetched_in_validation, *single.outputs.values()])
