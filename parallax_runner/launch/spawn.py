"""Starts one process of a run: guarded, in a session of its own, writing to its log."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from parallax_runner.errors import LaunchError
from parallax_runner.launch import guard


def spawn(
    argv: Sequence[str], env: Mapping[str, str], log_name: Path, *, said: bytes = b"", last_signal: int, anew: bool
) -> subprocess.Popen[bytes]:
    """`env` is on top of this process's own, `said` its input; the kernel sends it `last_signal` when this one ends.

    Its log goes on, or is written `anew`. Raises LaunchError if it cannot be executed.
    """
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(last_signal), *argv]
    try:
        log_name.parent.mkdir(parents=True, exist_ok=True)
        with open(log_name, "wb" if anew else "ab") as output:
            process = subprocess.Popen(
                guarded,
                env=os.environ | dict(env),
                stdin=subprocess.PIPE if said else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchError(f"cannot start {argv[0]}: {error}") from error
    if process.stdin is not None:
        # Where a remote shell is gone already, its exit status tells.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(said)
    return process
