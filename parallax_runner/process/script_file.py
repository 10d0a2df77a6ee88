"""Finds the script that the user started, which workers may have to run again."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from pathlib import Path

# Programs whose own main module calls the user's code. To run such a program again is not to run a script again.
RUNNERS = ("pytest", "py.test", "unittest", "IPython", "ipython", "ipykernel", "ipykernel_launcher")


def script_file() -> Path | None:
    """Returns the absolute path of the script that the user started, or None in a notebook, in an interactive session,
    or if Python reads its program from standard input or from the command line."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or Path(file).name.startswith("<"):  # Python calls a program from standard input "<stdin>"
        return None
    return Path(file).resolve()


def script_module() -> str | None:
    """Returns the name of the script's module if the script was started with `python -m`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return None if spec is None else spec.name.removesuffix(".__main__")


def why_not_again() -> str | None:
    """Returns why workers cannot run a script up to the current call, as a clause for a message. Returns None if they
    can."""
    file = script_file()
    if file is None:
        return "this is a notebook, an interactive session or a program without a file"
    started = script_module() or file.name
    if started in RUNNERS:
        return f"{started} calls this code"
    if multiprocessing.parent_process() is not None:
        return f"this is the child process {multiprocessing.current_process().name!r}"
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        return f"this is the thread {thread.name!r}"
    return None
