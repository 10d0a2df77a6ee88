"""Gives a command line to `python -m parallax_runner` within this process, which saves the start of another one."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra

from parallax_runner import __main__ as entry


def answer(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What the command prints and its exit status, for what is refused before Hydra runs a job.

    Raises AssertionError where a job would run: that needs a process of its own.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    with _command_line(arguments, cwd), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            status = entry.main()
        except SystemExit as end:  # of argparse
            status = end.code if isinstance(end.code, int) else 1
    return subprocess.CompletedProcess(list(arguments), status, stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def _command_line(arguments: tuple[str, ...], cwd: Path) -> Iterator[None]:
    """As `python -m` has it: the folder, the words, and that modules are found in the folder."""
    before, argv, path, modules = os.getcwd(), sys.argv, sys.path[:], set(sys.modules)
    runs, hydra = entry.run, entry._hydra
    os.chdir(cwd)
    sys.argv = [str(Path(entry.__file__)), *arguments]
    sys.path.insert(0, str(cwd))
    entry.run = entry._hydra = _no_job
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        entry.run, entry._hydra = runs, hydra
        os.chdir(before)
        sys.argv, sys.path[:] = argv, path
        for name in set(sys.modules) - modules:  # a folder's own modules must not be found for the next folder
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(cwd)):
                del sys.modules[name]


def _no_job(*_: object) -> None:
    raise AssertionError("a job would run")
