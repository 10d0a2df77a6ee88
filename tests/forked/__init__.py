"""Starts Python programs from a process that has TensorFlow imported, which saves each of them this import.

The programs are processes of their own, under the real mpirun: docs/design/0042-forked-launches.md. Tests of how
processes start or die do not use this.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.hosts.cluster import guarded
from parallax_runner.launch import preloaded
from tests.forked.client import PYTHON, SERVER

STUB = Path(__file__).with_name("python")
ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """What a program needs that is started by STUB in place of the interpreter."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # a test may change it
    # Horovod's ranks ask each other every so many milliseconds, by itself 1; these share two cores with other runs.
    return {SERVER: _address(), PYTHON: sys.executable, "PATH": path, "HOROVOD_CYCLE_TIME": "5"}


@functools.cache
def _address() -> str:
    """Starts the server, which ends with this process, and returns its address."""
    address = Path(tempfile.mkdtemp()) / "server"
    # One thread of OpenBLAS is none beside the main one, and MLflow's telemetry starts none: a fork has all threads.
    alone = {"OPENBLAS_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "TF_CPP_MIN_LOG_LEVEL": "2"}
    env = os.environ | preloaded.environment() | alone
    command = guarded([sys.executable, "-m", "tests.forked.server", str(address)], signal.SIGKILL)
    server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n", "the fork server does not start"
    return str(address)
