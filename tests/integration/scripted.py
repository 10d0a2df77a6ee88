"""Starts a script that calls parallel_run, as a user would, and computes the single-device result."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tests import forked

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "train.py"
STEPS = 4
RATE = float(np.float32(0.1))  # TensorFlow casts it from float32 to float64


@dataclasses.dataclass(frozen=True)
class Done:
    """A script that has ended."""

    run_dir: Path
    status: int
    stdout: str
    stderr: str

    def checkpoint(self, folder: Path | None = None) -> dict[str, np.ndarray]:
        """Returns the variables of the last checkpoint."""
        reader = tf.train.load_checkpoint(str(folder or self.run_dir / "ckpt"))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

    @property
    def plan(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "plan.json").read_text())


def start(
    cwd: Path,
    *,
    as_module: bool = False,
    python: str = sys.executable,
    environment: Mapping[str, str] = MappingProxyType({}),
    **asked: Any,
) -> subprocess.Popen[str]:
    """Starts the script as a file or as a module."""
    script = ["-m", "tests.integration.scripts.train"] if as_module else [str(SCRIPT)]
    return subprocess.Popen(
        [python, *script, json.dumps({"steps": STEPS, **asked})],
        cwd=cwd,
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(cwd: Path, **asked: Any) -> Done:
    """Runs the script to its end, in processes that begin with TensorFlow already imported."""
    with start(cwd, python=str(forked.STUB), environment=forked.environment(), **asked) as process:
        try:
            stdout, stderr = process.communicate(timeout=240)
        except BaseException:
            process.terminate()
            raise
    return Done(cwd / "out", process.returncode, stdout, stderr)


def one_device(
    *, average_sparse: bool, steps: int = STEPS, table: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns table and weights after `steps` steps with the mean of two replicas' gradients, in NumPy. `table` is the
    initial table, ones if it is None."""
    table, weights = np.ones([6, 2]) if table is None else table, np.ones(2)
    for _ in range(steps):
        sparse, dense = np.zeros_like(table), np.zeros_like(weights)
        for ids in ([0, 1, 2, 2], [2, 3, 4, 5]):
            slope = 2 * (table[ids] @ weights - 3.0) / 4
            np.add.at(sparse, ids, slope[:, None] * weights)
            dense += slope @ table[ids]
        table, weights = table - RATE * sparse / (2 if average_sparse else 1), weights - RATE * dense / 2
    return table, weights


def expect(
    done: Done,
    *,
    average_sparse: bool = False,
    folder: Path | None = None,
    steps: int = STEPS,
    table: np.ndarray | None = None,
) -> None:
    assert done.status == 0, done.stderr
    table, weights = one_device(average_sparse=average_sparse, steps=steps, table=table)
    saved = done.checkpoint(folder)
    np.testing.assert_allclose(saved["embedding/table"], table, rtol=1e-12)
    np.testing.assert_allclose(saved["weights"], weights, rtol=1e-12)
    assert saved["global_step"] == steps


def told(done: Done, worker: int, what: str) -> list[str]:
    """Returns the text after `what` in each line that a worker has printed on the terminal."""
    return re.findall(rf"^\[worker {worker}\] {what} ?(.*)$", done.stdout, re.M)
