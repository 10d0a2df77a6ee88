"""Startup and exit of every child process: its log, its connection to the driver, and its last message."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from parallax_runner.errors import ParallaxError, ScriptError, is_of_storage, lost_server
from parallax_runner.launch import bind_address, installation
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.launch.logs import log_path, redirect_output
from parallax_runner.launch.proxies import connect_directly
from parallax_runner.process.limits import explained, with_limit
from parallax_runner.process.user_code import describe_exit


def run_child(role: str, index: int, run_dir: Path, body: Callable[[Path, int, ControlClient], None]) -> None:
    """Runs `body` as the work of this child process. If `body` fails, sends the failure to the driver and writes the
    traceback to the log of the process."""
    if wire.BLOCK_SIGNALS in os.environ:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
    connect_directly()
    try:
        client = ControlClient.connect(role, index)
    except Exception as error:
        told = explained(error)
        if not isinstance(told, ParallaxError):
            raise
        sys.exit(f"parallax_runner: {told}")
    ended_well: list[bool] = []
    # Exit handlers run in reverse order. This one is registered before `body` imports anything, so it runs after all
    # exit handlers that `body` registers.
    atexit.register(_skip_teardown, ended_well)
    try:
        redirect_output(log_path(run_dir, role, index))
        # If native code crashes, the log contains the Python line that called it.
        faulthandler.enable(all_threads=False)
        bind_address.check_loaded()
        # Before `body` imports anything, because another version may fail to import.
        client.show_installation(installation.versions())
        body(run_dir, index, client)
    except BaseException as error:  # includes sys.exit in the user's code, which must be reported to the driver
        fail(error, role, index, run_dir, client)
    _flush()
    if role == "server":
        os._exit(0)  # for the same reason as in `fail`
    ended_well.append(True)


def fail(
    error: BaseException,
    role: str,
    index: int,
    run_dir: Path,
    client: ControlClient,
    called_from: Sequence[traceback.FrameSummary] = (),
) -> NoReturn:
    """Reports the failure of this child process to the driver, writes the traceback to its log, and ends the process.
    `called_from` are the frames above the one that has caught the error."""
    trace = _trace(error, called_from)
    # Report to the driver first, because writing to the log can fail, for example on a full disk.
    wanted = error.exit_status if isinstance(error, ScriptError) else None
    recurs = isinstance(explained(error), ParallaxError) or is_of_storage(error)  # a limit stays, too
    parts = error.parts if isinstance(error, ParallaxError) else None
    told = _told(error, log_path(run_dir, role, index))
    client.fail(told, trace, parts=parts, recurs=recurs, exit_status=wanted)
    with contextlib.suppress(OSError):
        print(trace, file=sys.stderr, flush=True)
    _flush()
    # The process exits with os._exit instead of sys.exit, because threads of TensorFlow and the collectives may
    # wait for peers that have already exited.
    os._exit(wanted or 1)


def _flush() -> None:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()


def _skip_teardown(ended_well: list[bool]) -> None:
    """If the process has finished its work, exits before Python frees its objects.

    Freeing the graphs of a large model takes seconds of CPU time. On a busy machine, this can take longer than the
    driver waits.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if not ended_well or (mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()):
        # Python exits normally here: either the process failed, or a script uses mpi4py, which finalizes MPI later.
        return
    logging.shutdown()
    _flush()
    os._exit(0)


def _trace(error: BaseException, called_from: Sequence[traceback.FrameSummary]) -> str:
    """Returns the traceback, after the frames `called_from`. For a script, the traceback begins with the script's own
    line, not with the code that runs the script."""
    whole = traceback.TracebackException.from_exception(error)
    whole.stack[:0] = called_from
    runs_it = [number for number, frame in enumerate(whole.stack) if frame.filename == "<frozen runpy>"]
    if runs_it:
        del whole.stack[: runs_it[-1] + 1]
    return "".join(whole.format())


def _told(error: BaseException, log: Path) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by SIGINT"
    if isinstance(error, ParallaxError):
        return str(error)
    if isinstance(error, OSError) and is_of_storage(error) and error.filename is None:
        # If a print fails, its OSError does not name the file.
        return f"{log}: cannot be written: {error.strerror}"
    if (lost := lost_server(error)) is not None:
        return lost
    if not isinstance(error, Exception):
        return f"the user's code: {describe_exit(error)}"
    return with_limit(f"{type(error).__name__}: {error}")
