"""How every child begins and ends: its log, its connection to the driver, its last words."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from parallax_runner.errors import LaunchError, ParallaxError
from parallax_runner.launch.client import ControlClient
from parallax_runner.launch.logs import log_path, redirect_output


def run_child(role: str, index: int, run_dir: Path, body: Callable[[Path, int, ControlClient], None]) -> None:
    """Runs `body` and ends the process; a failure goes to the driver, and with its traceback to the process's log."""
    try:
        client = ControlClient.connect(role, index)
    except LaunchError as error:
        sys.exit(f"parallax_runner: {error}")
    redirect_output(log_path(run_dir, role, index))
    try:
        body(run_dir, index, client)
    except Exception as error:
        trace = traceback.format_exc()
        print(trace, file=sys.stderr, flush=True)
        message = str(error) if isinstance(error, ParallaxError) else f"{type(error).__name__}: {error}"
        client.fail(message, trace)
        status = 1
    else:
        status = 0
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of TensorFlow and Horovod may wait for peers that are gone.
    if status or role == "server":
        os._exit(status)
