"""The variables that make computations on GPUs comparable."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from parallax_runner.driver.exact_on_gpus import DETERMINISTIC, NO_TF32, compute_exactly

# TensorFlow reads its variable in the first line that needs a seed.
PROGRAM = f"""
import os
import tensorflow.compat.v1 as tf
from parallax_runner.driver.exact_on_gpus import compute_exactly

with tf.Graph().as_default() as graph:
    tf.random.uniform([2])
    compute_exactly()
    tf.nn.softmax_cross_entropy_with_logits(labels=[[0.5, 0.5]], logits=[[1.0, 2.0]])
types = [op.type for op in graph.get_operations()]
print("LogSoftmax" in types, os.environ["{NO_TF32}"], os.environ["{DETERMINISTIC}"])
"""


def test_the_users_variables_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NO_TF32, "1")
    monkeypatch.setenv(DETERMINISTIC, "0")
    compute_exactly()
    assert (os.environ[NO_TF32], os.environ[DETERMINISTIC]) == ("1", "0")


def test_a_process_that_has_used_tensorflow_builds_the_workers_graph() -> None:
    environ = {name: value for name, value in os.environ.items() if name not in (NO_TF32, DETERMINISTIC)}
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environ, check=True)
    assert found.stdout.strip() == "True 0 1"
