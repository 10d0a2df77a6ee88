"""A command that does not hear what ends a job of Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from parallax_runner.launch.block_signals import BLOCK_SIGNALS

# A handler of its own, as mpirun has one, changes nothing.
COMMAND = (
    "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(3)); print('ready', flush=True); input(); exit(5)"
)


def test_a_signal_that_ends_a_job_does_not_reach_the_command() -> None:
    argv = [*BLOCK_SIGNALS, sys.executable, "-c", COMMAND]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in (signal.SIGTERM, signal.SIGUSR1):
            os.kill(process.pid, number)
        process.communicate("\n")
    assert process.returncode == 5
