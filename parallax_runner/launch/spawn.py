"""Starts one process of a run under `guard.py`, in its own session, with its output redirected to its log."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from parallax_runner.errors import LaunchError
from parallax_runner.files.in_place import open_in_place
from parallax_runner.launch import guard
from parallax_runner.launch.job import Command
from parallax_runner.process.limits import with_limit


def spawn(command: Command, log_name: Path, *, anew: bool) -> subprocess.Popen[bytes]:
    """Starts a process. Appends to its log, or overwrites the log if `anew` is True. Raises LaunchError if the command
    cannot be executed."""
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(command.last_signal), *command.argv]
    try:
        with open(_open_log(log_name, anew=anew), "wb") as output:
            process = subprocess.Popen(
                guarded,
                env=os.environ | command.env,
                stdin=subprocess.PIPE if command.stdin else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchError(with_limit(f"cannot start {command.argv[0]}: {error}")) from error
    if process.stdin is not None:
        # If a remote shell has already ended, its exit status will show the reason.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(command.stdin)
    return process


def _open_log(path: Path, *, anew: bool) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return open_in_place(path, os.O_WRONLY | (os.O_TRUNC if anew else os.O_APPEND))
    except OSError as error:
        raise LaunchError(f"{path}: cannot be written: {error.strerror}") from error
