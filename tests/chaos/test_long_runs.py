"""Long runs: memory, open files, threads and the run's folder stay as they are after the beginning."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest

from tests.chaos.usage import Usage, Watch
from tests.integration.runs import started

SCRIPT = Path(__file__).parent / "scripts" / "train_often.py"
ROOT = Path(__file__).parents[2]
LONG_SECS = 1500
STEPS = 3000
# Allocators keep what they once had, in an arena per thread, so memory first grows to a plateau.
GROWN_BYTES = 24 << 20
# A call of `fit` leaves its captured graph in TensorFlow's registry of gradients.
CALL_BYTES = 16 << 20
CALLS = 30

pytestmark = pytest.mark.timeout(LONG_SECS + 300)


def expect_flat(usages: Sequence[Usage], lives_as: Usage) -> None:
    """Late in the life of a worker, all processes use what they do in the middle of it. The driver then exports the
    model, for which it loads more modules."""
    begin, end = (lives_as.samples[number].at_secs for number in (0, -1))
    secs = end - begin
    for usage in usages:
        early, late = usage.between(begin + 0.4 * secs, begin + 0.6 * secs), usage.between(begin + 0.8 * secs, end - 2)
        for name in ("memory_bytes", "files", "threads"):
            # The median, because a file may be open just when a sample is taken.
            before = median(getattr(sample, name) for sample in early)
            after = median(getattr(sample, name) for sample in late)
            most = before + (GROWN_BYTES if name == "memory_bytes" else 2)
            assert after <= most, f"{usage.name}: {name} {before}, {after}"


def long_lived(watch: Watch, *names: str) -> list[Usage]:
    """Returns the usage of the processes with these names."""
    found = watch.usages()
    return [max(found[name], key=lambda one: len(one.samples)) for name in names]


def test_three_thousand_steps_with_three_hundred_checkpoints(lm: tuple[str, ...], tmp_path: Path) -> None:
    overrides = (*lm, "comm=hybrid", f"train.steps={STEPS}", "ckpt.save_steps=10", "train.log_every=10")
    with started(*overrides, cwd=tmp_path) as running, Watch(running.process.pid) as watch:
        running.wait_for_step()
        running.wait_for_line(r"step 5\d\d/")
        early = files_in(running.run_dir)
        running.wait_for_line(r"step 29\d\d/")
        late = files_in(running.run_dir)
        run = running.wait(LONG_SECS).expect_success()
    assert run.summary["steps"] == STEPS
    usages = long_lived(watch, "worker 0", "worker 1", "server 0", "driver")
    expect_flat(usages, lives_as=usages[0])
    assert late <= early + 12  # a checkpoint that is being written
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        (rows,) = database.execute("select count(*) from metrics where key = 'train/loss'").fetchone()
    assert rows == STEPS // 10 + 1  # the first step


def test_thirty_epochs_of_fit(tmp_path: Path) -> None:
    process = start(tmp_path, 1, 30, 100)
    with Watch(process.pid) as watch:
        assert process.wait(LONG_SECS) == 0, (tmp_path / "stderr.txt").read_text()
    usages = long_lived(watch, "worker 0", "worker 1", "driver")
    expect_flat(usages, lives_as=usages[0])
    assert not (tmp_path / "run" / "shipment").exists()


def test_thirty_calls_of_fit(tmp_path: Path) -> None:
    process = start(tmp_path, CALLS, 1, 20)
    assert process.wait(LONG_SECS) == 0, (tmp_path / "stderr.txt").read_text()
    used = json.loads((tmp_path / "stdout.txt").read_text().splitlines()[-1])
    memory, files, threads = zip(*used, strict=True)
    assert max(files[2:]) <= files[1] + 2 and max(threads[2:]) <= threads[1] + 2
    assert memory[-1] - memory[4] <= (CALLS - 5) * CALL_BYTES
    assert not (tmp_path / "run" / "shipment").exists()


def start(cwd: Path, *arguments: int) -> subprocess.Popen[str]:
    """Starts the script."""
    with open(cwd / "stdout.txt", "w") as stdout, open(cwd / "stderr.txt", "w") as stderr:
        return subprocess.Popen(
            [sys.executable, SCRIPT, *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=stdout,
            stderr=stderr,
            text=True,
        )


def files_in(folder: Path) -> int:
    """Returns the number of files."""
    return sum(path.is_file() for path in folder.rglob("*"))
