"""Runs the product by its command line, in separate processes, and returns the results."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hosts.cluster import guarded
from parallax_runner.checkpoints.checkpoint_files import list_checkpoints
from parallax_runner.config.hydra_quotes import quoted
from tests import forked

LAUNCH_SECS = 400
PROGRAM = ("-m", "parallax_runner")
# The smallest language model; the fixture `text` adds `data.path`.
VOCAB_SIZE = 200
SEQUENCE_LENGTH = 5
BATCH_SIZE = 4
SIZE = 8
TINY_LM = (
    f"data.vocab_size={VOCAB_SIZE}",
    f"data.sequence_length={SEQUENCE_LENGTH}",
    f"data.batch_size={BATCH_SIZE}",
    f"model.embedding_size={SIZE}",
    f"model.num_units={SIZE}",
    f"model.projection_size={SIZE}",
    "model.num_sampled=10",
)


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    run_dir: Path
    exit_status: int
    stdout: str
    stderr: str
    secs: float

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`."""
        return json.loads((self.run_dir / "summary.json").read_text())

    @functools.cached_property
    def plan(self) -> dict[str, Any]:
        """`plan.json`."""
        return json.loads((self.run_dir / "plan.json").read_text())

    @property
    def ckpt_dir(self) -> Path:
        """The default folder of its checkpoints."""
        return self.run_dir / "ckpt"

    def sidecar(self, step: int) -> dict[str, Any]:
        """Returns the sidecar of the checkpoint of a step."""
        return json.loads((self.ckpt_dir / f"model.ckpt-{step}.json").read_text())

    def losses(self) -> dict[int, float]:
        """Returns the losses in the progress lines by step."""
        return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+)/\d+  loss (\S+)", self.stderr, re.M)}

    def log_names(self) -> set[str]:
        """Returns the file names in its log folder: `worker_0.log` and the like."""
        return {path.name for path in (self.run_dir / "logs").iterdir()}

    def expect_success(self) -> Run:
        """Returns the run itself; fails if the run failed."""
        assert self.exit_status == 0, f"exit status {self.exit_status}\n{self.stderr}"
        return self

    def expect_nothing_started(self) -> None:
        """Fails if a worker, server or mpirun was started: none may have left a log, and the driver may have logged
        none."""
        logs = self.run_dir / "logs"
        if logs.is_dir():
            assert self.log_names() <= {"driver.log"}
            assert "started pid" not in (logs / "driver.log").read_text()


class Running:
    """A run in the background until it ends or is ended; `run_dir` identifies its processes. `program` is what Python
    runs. A program other than the runner itself chooses `run_dir`."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        run_dir: Path,
        cwd: Path,
        python_path: Path | None,
        is_forked: bool = False,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        cwd.mkdir(parents=True, exist_ok=True)
        self.run_dir = run_dir
        self._stdout, self._stderr = cwd / "stdout.txt", cwd / "stderr.txt"
        forked_environment = forked.environment() if is_forked else {}
        self._started = time.monotonic()
        paths = (python_path, os.environ.get("PYTHONPATH"))
        python = str(forked.STUB) if is_forked else sys.executable
        folder = [f"hydra.run.dir={quoted(str(run_dir))}"] if program is PROGRAM else []
        with open(self._stdout, "w") as stdout, open(self._stderr, "w") as stderr:
            self.process = subprocess.Popen(
                guarded([python, *program, *arguments, *folder], signal.SIGTERM),
                cwd=cwd,
                env={
                    **os.environ,
                    **forked_environment,
                    "PYTHONPATH": os.pathsep.join(map(str, filter(None, paths))),
                },
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    def wait(self, timeout_secs: float = LAUNCH_SECS) -> Run:
        """Waits for the driver to end."""
        exit_status = self.process.wait(timeout_secs)
        return Run(
            run_dir=self.run_dir,
            exit_status=exit_status,
            stdout=self._stdout.read_text(),
            stderr=self._stderr.read_text(),
            secs=time.monotonic() - self._started,
        )

    def stderr(self) -> str:
        """Returns what the driver has written to stderr so far."""
        return self._stderr.read_text()

    def wait_for_step(self) -> None:
        """Waits until the driver reports the first step."""
        self.wait_for_line(r"step \d+/")

    def wait_for_line(self, beginning: str) -> None:
        """Waits until the driver writes a line with this beginning, a pattern."""
        deadline = time.monotonic() + LAUNCH_SECS
        while not re.search(rf"^{beginning}", self._stderr.read_text(), re.M):
            assert self.process.poll() is None, self._stderr.read_text()
            assert time.monotonic() < deadline, self._stderr.read_text()
            time.sleep(0.1)

    def wait_for_checkpoints(self, count: int) -> None:
        """Waits for `count` checkpoints. They are written in the background, some steps after they were due."""
        deadline = time.monotonic() + LAUNCH_SECS
        while len(list_checkpoints(self.run_dir / "ckpt")) < count:
            assert self.process.poll() is None, self._stderr.read_text()
            assert time.monotonic() < deadline, self._stderr.read_text()
            time.sleep(0.05)

    def member(self, role: str, index: int) -> psutil.Process:
        """Returns the process of a worker or a server."""
        module = ["-m", f"parallax_runner.{role}"]
        others = []
        for process in self.left():
            with contextlib.suppress(psutil.Error):  # it may end while it is looked at
                argv, environ = process.cmdline(), process.environ()
                rank = environ.get("OMPI_COMM_WORLD_RANK", "0") if role == "worker" else argv[-1]
                if argv[1:3] == module and rank == str(index):
                    return process
                others.append(argv)
        raise AssertionError(f"no {role} {index} among {others}")

    def left(self) -> list[psutil.Process]:
        """Returns living processes with the run directory on their command line."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.pid != os.getpid() and str(self.run_dir) in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def seconds_until_none_left(self, timeout_secs: float) -> float:
        """Waits until all its processes are gone; returns the seconds that this took."""
        start = time.monotonic()
        while left := self.left():
            assert time.monotonic() < start + timeout_secs, left
            time.sleep(0.05)
        return time.monotonic() - start

    def kill(self) -> None:
        """Ends all remaining processes."""
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def started(*arguments: str, cwd: Path, name: str = "out", python_path: Path | None = None) -> Iterator[Running]:
    """Starts a run in the folder `cwd`, with the run directory `cwd/name`; it is ended with the block at the latest.

    Its processes look for modules in `python_path` first.
    """
    running = Running(arguments, run_dir=cwd / name, cwd=cwd, python_path=python_path)
    try:
        yield running
    finally:
        running.kill()


@contextlib.contextmanager
def started_script(script: Path, *arguments: str, run_dir: Path, python_path: Path) -> Iterator[Running]:
    """Like `started`, for a script that runs in the folder `run_dir.parent`."""
    cwd = run_dir.parent
    running = Running(arguments, run_dir=run_dir, cwd=cwd, python_path=python_path, program=[str(script)])
    try:
        yield running
    finally:
        running.kill()


def launch(
    *arguments: str, cwd: Path, name: str = "out", python_path: Path | None = None, is_forked: bool = True
) -> Run:
    """Runs to the end; see `started`. With `is_forked` its processes begin with TensorFlow and the package already
    imported, so nothing in `python_path` can replace these."""
    running = Running(arguments, run_dir=cwd / name, cwd=cwd, python_path=python_path, is_forked=is_forked)
    try:
        return running.wait()
    finally:
        running.kill()


@dataclass(frozen=True)
class Broken:
    """A run that was disturbed `secs` before its driver ended; `left` are processes that outlived it."""

    run: Run
    secs: float
    left: list[str]


def break_in(running: Running, act: Callable[[], None]) -> Broken:
    """Disturbs a run in the middle of its steps and waits for the driver to end."""
    running.wait_for_step()
    start = time.monotonic()
    act()
    run = running.wait()
    return Broken(run, time.monotonic() - start, [str(process) for process in running.left()])


def interrupt(running: Running) -> None:
    """Sends Ctrl-C to the driver, as a shell does."""
    running.process.send_signal(signal.SIGINT)
