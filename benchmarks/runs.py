"""Starts runs of this project and of its peers in separate folders, and reads their output and files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.overlap import Told
from parallax_runner.plan.format_bytes import format_bytes

RUN_TIMEOUT_SECS = 1800
STANDING = re.compile(rb"^step (\d+)/\d+ ")


class RunFailed(Exception):
    """Raised if a run failed, so it cannot be measured."""


class Watched:
    """A background command that reports its steps. `started` is its start time in seconds since the epoch.

    The command's output goes to `terminal.log` in the command's folder. `told` lists the progress reports, and
    `on_told` is called for each report when it arrives. Use this class as a context manager: on exit, a command that is
    still running is terminated.
    """

    def __init__(
        self,
        run_dir: Path,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        on_told: Callable[[Told], None] | None = None,
    ) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.run_dir = run_dir
        self.argv = list(argv)
        self.told: list[Told] = []
        self.started = time.time()
        self._on_told = on_told
        self._process = subprocess.Popen(
            self.argv,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            # After SIGTERM, a driver or mpirun ends its own children.
            self._process.terminate()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The id of the command's process."""
        return self._process.pid

    def wait_until_ended(self) -> None:
        """Waits until the command ends. Raises RunFailed with the last lines of output if the command failed."""
        command = " ".join(self.argv)
        try:
            status = self._process.wait(RUN_TIMEOUT_SECS)
        except subprocess.TimeoutExpired as error:
            raise RunFailed(f"{command}\ndid not end within {RUN_TIMEOUT_SECS} s") from error
        self._reader.join()
        if status:
            raise RunFailed(f"{command}\nended with status {status}:\n{self.said()[-4000:]}")

    def said(self) -> str:
        """Returns all output so far."""
        return (self.run_dir / "terminal.log").read_text(encoding="utf-8", errors="replace")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with open(self.run_dir / "terminal.log", "wb") as terminal:
            for line in self._process.stdout:
                now = time.monotonic()
                match = STANDING.match(line)
                if match:
                    self.told.append(Told(int(match[1]), now))
                    if self._on_told is not None:
                        self._on_told(self.told[-1])
                terminal.write(line)
                terminal.flush()


@dataclass(frozen=True)
class Predicted:
    """A plan's prediction of the bytes per step and worker. It is a bound from shapes unless rows were measured."""

    bytes: int
    measured: bool

    def __str__(self) -> str:
        return f"{'≈' if self.measured else '≤'} {format_bytes(self.bytes)}" if self.bytes else format_bytes(0)


class Run(Watched):
    """A run of `python -m parallax_runner`."""

    def __init__(
        self, run_dir: Path, overrides: Sequence[str], *, cwd: Path, on_told: Callable[[Told], None] | None = None
    ) -> None:
        argv = [sys.executable, "-m", "parallax_runner", *overrides, f"hydra.run.dir={run_dir}"]
        super().__init__(run_dir, argv, cwd=cwd, on_told=on_told)

    def wait(self) -> Mapping[str, Any]:
        """Waits until the run ends and returns the contents of `summary.json`. Raises RunFailed with the last lines of
        output if the run failed."""
        self.wait_until_ended()
        return json.loads((self.run_dir / "summary.json").read_text(encoding="utf-8"))

    def predicted(self) -> Predicted | None:
        """Returns the plan's prediction, or None if the plan has no prediction."""
        plan = json.loads((self.run_dir / "plan.json").read_text(encoding="utf-8"))
        each = [variable["sent_bytes_per_step"] for variable in plan["variables"]]
        return None if None in each else Predicted(sum(each), plan["rows_measured"] is not None)
