"""Checks that a script calls `parallel_run` where the process that the user started can become the driver."""

from __future__ import annotations

import multiprocessing
import threading

from parallax_runner.driver.only_driver import check_outside_workers
from parallax_runner.errors import LaunchError


def check_first_process(function: str) -> None:
    """Raises LaunchError if `function` was called in a thread or in a child process, because each worker runs the whole
    script again, up to this call."""
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        raise LaunchError(
            f"{function} was called in the thread {thread.name!r}, and in each worker the main thread would run the "
            f"rest of the script; call {function} in the main thread"
        )
    check_outside_workers(function)
    if multiprocessing.parent_process() is not None:
        raise LaunchError(
            f"{function} was called in the child process {multiprocessing.current_process().name!r}, and each worker, "
            f"which runs the script again, would start such a child too; call {function} in the script's own process, "
            'below `if __name__ == "__main__":` if child processes import the script'
        )
