"""Programs that call fit, which are not scripts: in a notebook, from standard input, in a test of pytest and others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client import BlockingKernelClient, KernelManager

from tests import forked

ROOT = Path(__file__).parents[2]
TIMEOUT_SECS = 240
EPOCHS, EPOCH_STEPS = 2, 4
# A small model, and `fit` with the arguments that all programs share.
MODEL = f"""
import keras
import numpy
import parallax_runner

keras.utils.set_random_seed(1)
x = numpy.arange(64, dtype="float32").reshape(32, 2) / 64
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.compile("sgd", "mse")


def fit(x=x, *, epochs={EPOCHS}, overrides=(), **given):
    given = dict(batch_size=8, shuffle=False, epochs=epochs, **given)
    return parallax_runner.fit(model, x, y, overrides=["tracking=off", *overrides], **given)
"""
# Processes of the run begin with TensorFlow already imported. The program itself is started without that.
FORKED = f"import sys\n\nsys.executable = {str(forked.STUB)!r}\n"
# The line of a program, which begins with both, that calls fit. It is also shown, if the program is in a file.
CALLED = next(number for number, line in enumerate((FORKED + MODEL).splitlines(), 1) if "parallax_runner.fit" in line)
SHOWN = '(return parallax_runner.fit(model, x, y, overrides=["tracking=off", *overrides], **given))'
# The line of a program, which begins with both, that calls fit. It is also shown, if the program is in a file.
CALLED = next(number for number, line in enumerate((FORKED + MODEL).splitlines(), 1) if "parallax_runner.fit" in line)
SHOWN = '(return parallax_runner.fit(model, x, y, overrides=["tracking=off", *overrides], **given))'


def environment() -> dict[str, str]:
    """Returns the environment of programs."""
    return {**os.environ, **forked.environment(), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def start(arguments: Sequence[str], *, cwd: Path, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Starts Python with these arguments."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment(),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    status: int
    stdout: str
    stderr: str

    def expect(self, status: int = 0) -> Ended:
        """Returns the object itself. Fails if the program had another exit status."""
        assert self.status == status, f"exit status {self.status}\n{self.stdout}\n{self.stderr}"
        return self

    @property
    def told(self) -> str:
        """What the program printed on stderr after the last progress of the run."""
        return self.stderr.rpartition("setting initial values\n")[2]


def run(*arguments: str, cwd: Path, text: str | None = None) -> Ended:
    """Runs Python with these arguments, and with `text` as its standard input."""
    process = start(arguments, cwd=cwd, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE)
    try:
        stdout, stderr = process.communicate(text, timeout=TIMEOUT_SECS)
    finally:
        process.kill()
    return Ended(process.returncode, stdout, stderr)


def run_script(text: str, *, cwd: Path) -> Ended:
    """Runs a script, after the definition of the model and `fit`."""
    path = cwd / "train.py"
    path.write_text(FORKED + MODEL + text)
    return run(str(path), cwd=cwd)


@dataclass
class Cell:
    """What a cell of a notebook has shown. `error` has the name, the text and the shown lines of an exception."""

    stdout: str = ""
    stderr: str = ""
    error: tuple[str, str, str] | None = None


class Notebook:
    """A Jupyter kernel, to which this process sends cells as a notebook does."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self._client = manager, client

    def run(self, text: str, *, interrupt_at: str | None = None) -> Cell:
        """Runs a cell and returns what it has shown. Interrupts the kernel as soon as the cell has printed
        `interrupt_at`."""
        cell, sent = Cell(), self._client.execute(text)
        while True:
            message = self._client.get_iopub_msg(timeout=TIMEOUT_SECS)
            if message["parent_header"].get("msg_id") != sent:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return cell
            _show(cell, message["msg_type"], content)
            if interrupt_at is not None and interrupt_at in cell.stdout + cell.stderr:
                self.manager.interrupt_kernel()
                interrupt_at = None


@contextmanager
def notebook(folder: Path) -> Iterator[Notebook]:
    """Starts a kernel in a folder. It ends with the block."""
    folder.mkdir(exist_ok=True)
    manager = KernelManager(connection_file=str(folder / "kernel.json"))
    manager.start_kernel(cwd=str(folder), env=environment() | {"IPYTHONDIR": str(folder / "ipython")})
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT_SECS)
        yield Notebook(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _show(cell: Cell, kind: str, content: dict[str, Any]) -> None:
    if kind == "stream":
        setattr(cell, content["name"], getattr(cell, content["name"]) + content["text"])
    elif kind == "error":
        cell.error = (content["ename"], content["evalue"], "\n".join(content["traceback"]))
