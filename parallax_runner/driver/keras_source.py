"""Files of Keras as sources of weights: for `action=evaluate`, `predict` and `export`, and for `ckpt.warm_start`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from parallax_runner.checkpoints.start import RESUME
from parallax_runner.errors import CheckpointError, Setting

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


def values_in(path: Path, single: SingleDeviceGraph, *, key: str) -> dict[str, np.ndarray]:
    """Returns the values that a file of Keras has for the variables of the run's model, by name. `key` is the setting
    that names the file. Raises CheckpointError if the file does not fit."""
    from parallax_runner.export.keras_values import read_values

    if single.keras_model is None:
        raise CheckpointError("a file of Keras has the weights of a Keras model, and this model is none").about(
            Setting.of(key, path)
        )
    return read_values(path, single.keras_model, key=key)


def checkpoint_of(path: Path, single: SingleDeviceGraph, run_dir: Path) -> Path:
    """Returns the prefix of a checkpoint with all variables of the run, made from a file of Keras. Its step is the step
    count of the file's optimizer. State of the optimizer that the file lacks is zero, because no step uses it.

    Raises CheckpointError if the file lacks a variable of the model, or has another shape for it.
    """
    from parallax_runner.checkpoints.converted import completed, step_in, write_converted
    from parallax_runner.export.keras_values import missing

    found = values_in(path, single, key=RESUME)
    about = Setting.of(RESUME, path)
    lacking = missing(found.keys(), single.keras_model)
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise CheckpointError(f"this file has no value for «{lacking[0]}»{more} of the model").about(about)
    values = completed(found, single.variables, about)
    return write_converted(run_dir, values, origin=path.absolute(), step=step_in(found))
