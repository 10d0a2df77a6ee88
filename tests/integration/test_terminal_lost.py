"""Runs that lose their terminal, or the pipe that replaces it: the training continues, or ends properly if asked to."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.integration import scripted
from tests.integration.runs import LAUNCH_SECS

LOST = re.compile(
    r"WARNING parallax_runner\.process\.terminal: (std\w+) cannot be written: .*\] (.*); its output", re.M
)


def lost(run_dir: Path) -> list[tuple[str, ...]]:
    """Returns the entries for lost streams in the driver's log."""
    return LOST.findall((run_dir / "logs" / "driver.log").read_text())


def command(run_dir: Path, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "parallax_runner", "model=simple", f"hydra.run.dir={run_dir}", *overrides]


def read_lines(argv: Sequence[str], count: int, cwd: Path) -> int:
    """Runs `argv 2>&1 | head -COUNT`; returns the exit status of `argv`."""
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(scripted.ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        for _ in range(count):
            assert process.stdout.readline()
        process.stdout.close()
        return process.wait(LAUNCH_SECS)
    finally:
        process.kill()


def test_head_reads_some_lines_and_the_run_goes_on(tmp_path: Path) -> None:
    run_dir = tmp_path / "out"
    overrides = ("comm=mpi", "train.steps=40", "train.log_every=1", "ckpt.save_steps=20")
    assert read_lines(command(run_dir, *overrides), 3, tmp_path) == 0
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["error"]) == ("finished", 40, None)
    assert (run_dir / "ckpt" / "model.ckpt-40.index").exists()
    assert lost(run_dir) == [("stderr", "Broken pipe")]


def test_the_lines_of_a_script_s_workers_are_lost_and_the_script_goes_on(tmp_path: Path) -> None:
    """The script prints in its workers, whose lines the driver passes on."""
    argv = [sys.executable, str(scripted.SCRIPT), json.dumps({"steps": scripted.STEPS})]
    assert read_lines(argv, 3, tmp_path) == 0
    (log,) = tmp_path.rglob("driver.log")
    assert sorted(lost(log.parents[1])) == [("stderr", "Broken pipe"), ("stdout", "Broken pipe")]
    assert "values " in (log.parent / "worker_0.log").read_text(), "the script came to its end"


def test_a_terminal_that_is_hung_up_ends_the_run_well(tmp_path: Path) -> None:
    """The kernel sends SIGHUP to the foreground processes of a terminal that is closed; writing to it fails with
    EIO."""
    run_dir = tmp_path / "out"
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.chdir(tmp_path)
            argv = command(run_dir, "comm=hybrid", "train.steps=1000000", "tracking=off", "ckpt.save_steps=1000000")
            os.execvpe(argv[0], argv, {**os.environ, "PYTHONPATH": str(scripted.ROOT), "TERM": "xterm"})
        finally:
            os._exit(127)
    shown, deadline = b"", time.monotonic() + LAUNCH_SECS
    while not re.search(rb"step .*\d+/1000000.*loss", shown):
        assert time.monotonic() < deadline, shown
        shown += os.read(terminal, 65536)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert Path(f"{summary['ckpt_path']}.index").exists(), "a checkpoint is saved when the terminal is lost"
    assert lost(run_dir) == [("stderr", "Input/output error")]
