"""Writes a checkpoint of a Keras model as a `.keras` file, which `keras.models.load_model` reads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import psutil
import tensorflow as tf

from parallax_runner.errors import ExportError
from parallax_runner.export.keras_weights import load_into_keras, variables_by_path
from parallax_runner.files.plain import remove, replace
from parallax_runner.plan.format_bytes import format_bytes


def write_keras_file(model: Any, *, prefix: Path, path: Path) -> Path:
    """Writes the model with the values of the checkpoint `prefix`, including its optimizer, to `path`. Returns `path`.

    Afterwards, the model itself has these values. All variables, including slots, are loaded into memory, and Keras may
    also serialize them in memory. The available memory is checked first, because the run would fail if the chief ran
    out of memory. Raises ExportError if there is not enough memory, CheckpointError if the checkpoint does not fit the
    model, and any error that Keras raises when it cannot serialize the model.
    """
    needed_bytes, available_bytes = 2 * _variables_bytes(model), psutil.virtual_memory().available
    if needed_bytes > available_bytes:
        raise ExportError(
            f"writing «{model.name}» as a .keras file needs {format_bytes(needed_bytes)} of memory, twice the size of "
            f"its variables, but only {format_bytes(available_bytes)} is available. Use load_into_keras on a machine "
            "with more memory"
        )
    partial = path.with_name(f".partial-{path.name}")
    remove(partial)
    partial.mkdir()  # a new folder, because Keras would write through a link
    try:
        with tf.device("CPU:0"):
            load_into_keras(model, prefix)
            model.save(partial / path.name)
        replace(partial / path.name, path)
        return path
    finally:
        remove(partial)


def _variables_bytes(model: Any) -> int:
    variables = variables_by_path(model).values()
    return sum(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables)
