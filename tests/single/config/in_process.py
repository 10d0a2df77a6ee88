"""Gives a command line to `python -m parallax_runner` within this process, which saves the start of another one."""

import contextlib
import functools
import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime

from parallax_runner import __main__ as entry
from parallax_runner.sweep import job, sweep


def answer(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What the command prints and its exit status, for what is refused before Hydra runs a job.

    Raises AssertionError where a job would run: that needs a process of its own.
    """
    with _no_hydra(), _command_line(arguments, cwd):
        return _answer(arguments)


def answer_of_hydra(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As `answer`, but Hydra runs as in a process of its own. Only the function that runs a job does nothing, and a
    sweep has no ledger and no tracker."""
    with _no_work(), _command_line(arguments, cwd):
        return _answer(arguments)


def _answer(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            status = entry.main()
        except SystemExit as end:  # of argparse
            status = end.code if isinstance(end.code, int) else 1
    return subprocess.CompletedProcess(list(arguments), status, stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def _no_hydra() -> Iterator[None]:
    before, entry._hydra = entry._hydra, _no_job
    try:
        yield
    finally:
        entry._hydra = before


@contextlib.contextmanager
def _no_work() -> Iterator[None]:
    runs, run_sweep, level = job.run, sweep.run_sweep, logging.getLogger().level
    job.run = functools.wraps(runs)(lambda _: None)
    sweep.run_sweep = lambda _sweep, _again, launch: sweep._status_of(launch)
    try:
        yield
    finally:
        job.run, sweep.run_sweep = runs, run_sweep
        logging.getLogger().setLevel(level)  # hydra.verbose
        JobRuntime.instance().set("name", "parallax_runner")


@contextlib.contextmanager
def _command_line(arguments: tuple[str, ...], cwd: Path) -> Iterator[None]:
    """As `python -m` has it: the folder, the words, and that modules are found in the folder."""
    before, argv, path, modules = os.getcwd(), sys.argv, sys.path[:], set(sys.modules)
    os.chdir(cwd)
    sys.argv = [str(Path(entry.__file__)), *arguments]
    sys.path.insert(0, str(cwd))
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        os.chdir(before)
        sys.argv, sys.path[:] = argv, path
        for name in set(sys.modules) - modules:  # a folder's own modules must not be found for the next folder
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(cwd)):
                del sys.modules[name]


def _no_job(*_: object) -> None:
    raise AssertionError("a job would run")
