"""A machine that claims to have two GPUs: every session of a run uses only its worker's GPU, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.driver.exact_on_gpus import DETERMINISTIC, NO_TF32
from tests.integration.runs import Run, launch

EXACT = {NO_TF32: "0", DETERMINISTIC: "1"}
# Every process that opens a session appends the GPUs of the session to a file of its own: their ids, «none» or «all».
# The cross entropy is another op if ops are deterministic. The model calls Python, so workers import this module.
RECORDS = f"""
import os

import numpy as np
import tensorflow.compat.v1 as tf

from models import simple

opens = tf.Session.__init__


def records(self, target="", graph=None, config=None):
    config = config or tf.ConfigProto()
    visible = config.gpu_options.visible_device_list or "all"
    with open(f"sessions_{{os.getpid()}}", "a") as file:
        print("none" if config.device_count.get("GPU") == 0 else visible, file=file)
    with open("exact", "a") as file:
        print({{name: os.environ.get(name) for name in {list(EXACT)}}} == {EXACT}, file=file)
    opens(self, target, graph, config)


tf.Session.__init__ = records


def build(features, optimizer):
    tf.nn.softmax_cross_entropy_with_logits(labels=[[0.5, 0.5]], logits=[[1.0, 2.0]])
    one = tf.ensure_shape(tf.numpy_function(lambda: np.float32(1), [], tf.float32), [])
    return simple.build(features | {{"x": features["x"] * one}}, optimizer)
"""


@pytest.fixture(autouse=True)
def variables_unset(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EXACT:
        monkeypatch.delenv(name, raising=False)


def run(folder: Path, *overrides: str) -> Run:
    (folder / "recording.py").write_text(RECORDS)
    arguments = ("model=simple", "data=linear", "model._target_=recording.build", "tracking=off", "cluster.workers=2")
    return launch(*arguments, "comm=mpi", *overrides, cwd=folder).expect_success()


def sessions(folder: Path) -> list[list[str]]:
    """Returns the GPUs of each session, by process."""
    return sorted(path.read_text().split() for path in folder.glob("sessions_*"))


def test_checkpoints_are_written_without_a_gpu(tmp_path: Path) -> None:
    found = run(tmp_path, "train.steps=4", "ckpt.save_steps=2")
    assert sessions(tmp_path) == [["0", "none", "none"], ["1"]]  # a session for each of the two checkpoints
    assert set((tmp_path / "exact").read_text().split()) == {"False"}
    assert "note: tensors are exchanged by Horovod: comm.backend=auto, and workers use GPUs" in found.stderr
    said = [line for line in found.stderr.splitlines() if "its machine has GPUs" in line]
    assert len(said) == 1, "both workers miss their GPUs, for the same reason"
    assert "computes on the CPU, although its machine has GPUs: TensorFlow was built without CUDA" in said[0]


def test_a_verification_uses_the_gpu_of_its_worker_and_computes_exactly(tmp_path: Path) -> None:
    run(tmp_path, "train.steps=2", "action=verify")
    assert sessions(tmp_path) == [["0", "0", "0"], ["1"]], "the chief repeats the steps of both ranks"
    assert set((tmp_path / "exact").read_text().split()) == {"True"}
