"""Starts one process of a run: guarded, in a session of its own, writing to its log."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from parallax_runner.errors import LaunchError
from parallax_runner.launch import guard
from parallax_runner.launch.job import Command


def spawn(command: Command, log_name: Path, *, anew: bool) -> subprocess.Popen[bytes]:
    """Its log goes on, or is written `anew`. Raises LaunchError if the command cannot be executed."""
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(command.last_signal), *command.argv]
    try:
        log_name.parent.mkdir(parents=True, exist_ok=True)
        with open(log_name, "wb" if anew else "ab") as output:
            process = subprocess.Popen(
                guarded,
                env=os.environ | command.env,
                stdin=subprocess.PIPE if command.stdin else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchError(f"cannot start {command.argv[0]}: {error}") from error
    if process.stdin is not None:
        # Where a remote shell is gone already, its exit status tells.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(command.stdin)
    return process
