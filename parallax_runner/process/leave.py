"""Ends this process from within the user's code, without running the rest of that code."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import sys
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """Ends this process with `status`. No line after the current one runs: SystemExit could be caught by the user's
    `except BaseException`, and would run the user's `finally` blocks.

    Exit handlers run, for example those that remove temporary folders. Threads of the user's code are not waited for,
    and its child processes are terminated, because they may wait for a `finally` block.
    """
    try:
        for child in multiprocessing.active_children():
            child.terminate()
        atexit._run_exitfuncs()
        _finalize_mpi()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
    finally:
        os._exit(status)


def _finalize_mpi() -> None:
    """Finalizes MPI if the user's code has started it with mpi4py, which would do so when Python ends."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
