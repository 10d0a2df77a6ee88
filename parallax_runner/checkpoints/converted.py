"""A checkpoint that is made from a file of Keras, so that all processes of a run read it like any other checkpoint. It
is in the run's folder, and exists only while the run's processes do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.checkpoint_files import Sidecar
from parallax_runner.checkpoints.origin import FOLDER, ORIGIN
from parallax_runner.checkpoints.publish import begin, flush, publish
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.checkpoints.writer import CheckpointWriter
from parallax_runner.files.plain import remove
from parallax_runner.files.whole import write_whole


def write_converted(run_dir: Path, values: Mapping[str, np.ndarray], *, origin: Path, step: int = 0) -> Path:
    """Writes the values of variables by name as a checkpoint of step `step`, and returns its prefix. `origin` is the
    file from which they are. Replaces an earlier one. Raises OSError or tf.errors.OpError if it cannot be written."""
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
