"""NaN and infinite losses in whole runs; tests/parallel checks the variables after skipped steps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from tests.integration.runs import launch

# The first step is finite, and moves the weights so far that the loss of the second or third is not.
DIVERGES = ("model=simple", "optimizer.learning_rate=1e25", "train.log_every=1", "tracking=off", "ckpt.save_steps=1")


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    run = launch(*DIVERGES, "comm=mpi", "train.max_restarts=3", cwd=tmp_path)
    assert run.exit_status == 1
    assert "Traceback" not in run.stderr
    assert "the loss of step" in run.summary["error"]
    assert "train.on_nan=stop" in run.summary["error"]
    assert run.summary["restarts"] == 0  # it would occur again
    failure = json.loads((run.run_dir / "failure.json").read_text())
    assert failure["first"]["role"] == "worker"
    # The first step's checkpoint is whole, unless rank 0 was ended while it was being written.
    assert failure["ckpt_path"] in (None, str(run.ckpt_dir / "model.ckpt-1"))
    written = list(run.ckpt_dir.glob("model.ckpt-*.index"))
    assert written or failure["ckpt_path"] is None
    for values in written:
        reader = tf.train.load_checkpoint(str(values.with_suffix("")))
        assert np.isfinite(reader.get_tensor("w"))


def test_skipping_ends_where_nothing_else_is_left(tmp_path: Path) -> None:
    run = launch(*DIVERGES, "comm=local", "train.on_nan=skip", "train.steps=1000", cwd=tmp_path)
    assert run.exit_status == 1
    assert "the last 100 steps" in run.summary["error"]
    assert run.stderr.count("skipped: its loss or gradients are NaN or infinite") == 100
