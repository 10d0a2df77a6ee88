"""The order of a worker's start."""

from pathlib import Path

from tests.integration.runs import launch

MODEL = """
import ctypes
import os
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import models.simple


def build(features, optimizer):
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        from parallax_runner.collectives.native.library import library

        ranks = ctypes.CDLL(str(library())).parallax_size()  # 1 before this process joins the others
        Path(f"rank_{os.environ['OMPI_COMM_WORLD_RANK']}").write_text(str(ranks))
    # A model that calls Python is built in each worker.
    one = tf.ensure_shape(tf.numpy_function(lambda: np.float32(1), [], tf.float32), [])
    return models.simple.build(features | {"x": features["x"] * one}, optimizer)
"""


def test_mpi_has_started_before_a_users_code_runs(tmp_path: Path) -> None:
    (tmp_path / "asking.py").write_text(MODEL)
    run = launch("model=simple", "model._target_=asking.build", "comm=mpi", "train.steps=2", cwd=tmp_path)
    assert run.exit_status == 0, run.stderr
    assert [(tmp_path / f"rank_{rank}").read_text() for rank in range(2)] == ["2", "2"]
