"""A checkpoint that is made from a file of Keras, or from a checkpoint of plain TensorFlow, so that all processes of a
run read it like any other checkpoint. It is in the run's folder, and exists only while the run's processes do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import Sidecar
from parallax_runner.checkpoints.origin import FOLDER, ORIGIN
from parallax_runner.checkpoints.publish import begin, flush, publish
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.checkpoints.writer import CheckpointWriter
from parallax_runner.errors import CheckpointError, Setting
from parallax_runner.files.plain import remove
from parallax_runner.files.whole import write_whole
from parallax_runner.graph.single_device_graph import Variable

STEP_OF_GRAPH, STEP_OF_KERAS = "global_step", "/iteration"


def write_converted(run_dir: Path, values: Mapping[str, np.ndarray], *, origin: Path, step: int = 0) -> Path:
    """Writes the values of variables by name as a checkpoint of step `step`, and returns its prefix. `origin` is the
    file or checkpoint from which they are. Replaces an earlier one. Raises OSError or tf.errors.OpError if it cannot be
    written."""
    folder = run_dir / FOLDER
    remove(folder)
    written = begin(folder, step)
    slices = [
        Slice(name, tf.as_dtype(value.dtype), value.shape, (0,) * value.ndim, value.shape)
        for name, value in values.items()
    ]
    CheckpointWriter(slices).write(written, list(values.values()))
    flush(written)
    write_whole(folder / ORIGIN, json.dumps({"path": str(origin)}) + "\n")
    return publish(written, folder, Sidecar(step, 0, 0, "", None))


def completed(
    values: Mapping[str, np.ndarray], variables: Iterable[Variable], about: Setting, *, source: str = "file"
) -> dict[str, np.ndarray]:
    """Returns a value for each saved variable of a run, with its dtype: that of `values`, or zeros. `about` is the
    setting that names the source, and `source` says what it is. Raises CheckpointError if a shape differs."""
    found = {}
    for one in variables:
        if not one.saved:
            continue
        dtype = tf.as_dtype(one.dtype).as_numpy_dtype
        value = values.get(one.full_name)
        if value is None:
            value = np.zeros(one.full_shape, dtype)
        if value.shape != one.full_shape:
            raise CheckpointError(
                f"variable «{one.full_name}» has shape {list(value.shape)} in this {source}, but shape "
                f"{list(one.full_shape)} in the model"
            ).about(about)
        found[one.full_name] = value.astype(dtype)
    return found


def step_in(values: Mapping[str, np.ndarray]) -> int:
    """Returns the number of steps that the values of variables tell: TensorFlow's global step, or the step count of
    Keras' optimizer. Returns 0 if there is none."""
    counts = [
        int(value)
        for name, value in values.items()
        if not value.ndim and (name == STEP_OF_GRAPH or name.endswith(STEP_OF_KERAS))
    ]
    return max(counts, default=0)
