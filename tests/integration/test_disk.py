"""Full disks, read-only folders and lost data: one clear error, nothing lost, and no process left."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parallax_runner.checkpoints.checkpoint_files import damage, list_checkpoints
from tests.integration.conftest import ENDLESS
from tests.integration.runs import Run, Running, launch, started

END_SECS = 200
TMPFS_BYTES = 4 << 20
SAVING = ("ckpt.save_steps=20", "train.max_restarts=5")


def end_after(running: Running, act: Callable[[], None]) -> Run:
    """Calls `act` once there are two checkpoints, and waits for the end: a failure without processes left."""
    running.wait_for_checkpoints(2)
    act()
    run = running.wait(END_SECS)
    assert run.exit_status == 1, run.stderr
    assert running.left() == []
    return run


def expect_whole_checkpoints(folder: Path) -> None:
    """Checks that the newest checkpoint is complete and no half-written one is among them."""
    found = list_checkpoints(folder)
    assert found
    assert damage(found[-1]) is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Fills the disk to the last byte."""
    with open(folder / "filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_a_disk_that_fills_up(lm: tuple[str, ...], small_disk: Path, tmp_path: Path) -> None:
    # The terminal and MLflow's database are elsewhere; all files of the run, including its journal, are on the small
    # disk.
    run_dir = small_disk / "out"
    arguments = (*lm, *ENDLESS, "comm=hybrid", *SAVING)
    running = Running(arguments, run_dir=run_dir, cwd=tmp_path, python_path=None)
    try:
        run = end_after(running, lambda: fill(small_disk))
    finally:
        running.kill()
    assert "No space left on device" in run.stderr
    assert str(run_dir / "ckpt") in run.stderr
    assert "Traceback (most recent call last)" not in run.stderr.partition("its last lines")[0]
    assert "Logging error" not in run.stderr
    assert "restart 1" not in run.stderr, "it would come again"
    expect_whole_checkpoints(run.ckpt_dir)


def test_a_disk_that_is_full_from_the_start(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk)
    running = Running(("model=simple", "tracking=off"), run_dir=small_disk / "out", cwd=tmp_path, python_path=None)
    run = running.wait(END_SECS)
    assert run.exit_status == 1
    assert "Traceback" not in run.stderr
    last = run.stderr.splitlines()[-1]
    assert last.startswith(
        f"parallax_runner: {small_disk / 'out' / 'plan.json'}: cannot be written: No space left on device; free"
    )


def test_a_checkpoint_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    run = launch("model=simple", f"ckpt.dir={tmp_path / 'taken' / 'ckpt'}", cwd=tmp_path)
    assert run.exit_status == 2
    assert run.stderr.strip() == (
        f"parallax_runner: ckpt.dir={tmp_path / 'taken' / 'ckpt'} (command line): expected a folder, "
        f"but {tmp_path / 'taken'} is a file."
    )
    run.expect_nothing_started()


def test_folders_that_are_for_reading_only_are_refused(small_disk: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    run = launch("model=simple", f"ckpt.dir={small_disk / 'ckpt'}", cwd=tmp_path)
    assert run.exit_status == 2
    assert f"ckpt.dir={small_disk / 'ckpt'} (command line): the folder {small_disk} is not writable" in run.stderr
    run.expect_nothing_started()
    running = Running(("model=simple",), run_dir=small_disk / "out", cwd=tmp_path, python_path=None)
    run = running.wait()
    assert run.exit_status == 2
    assert f"hydra.run.dir={small_disk / 'out'} (command line): the folder {small_disk} is not writable" in run.stderr


@pytest.mark.parametrize("what", ["cut", "deleted"])
def test_data_that_goes_away(lm: tuple[str, ...], tmp_path: Path, what: str) -> None:
    cache = tmp_path / "cache"

    def act() -> None:
        (tokens,) = cache.glob("*/train.npy")
        if what == "cut":
            os.truncate(tokens, 200)
        else:
            tokens.unlink()

    with started(
        *lm, *ENDLESS, "comm=mpi", "tracking=off", *SAVING, f"data.cache_dir={cache}", cwd=tmp_path
    ) as running:
        run = end_after(running, act)
    assert f"{cache}/" in run.summary["error"]
    # If the file is cut between the check and its use, the process is killed (SIGBUS); the next attempt finds the
    # damage.
    if run.summary["restarts"] == 0:
        assert ("was truncated" if what == "cut" else "disappeared") in run.summary["error"]
        assert "train.npy" in json.loads((run.run_dir / "failure.json").read_text())["first"]["reason"]
    expect_whole_checkpoints(run.ckpt_dir)
