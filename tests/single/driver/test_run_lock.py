"""One driver at a time in a run directory, and in a checkpoint folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.config.frozen import from_plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.run_lock import alone_in, alone_in_checkpoints
from parallax_runner.errors import ConfigError

HOLD = """
import sys, time
from pathlib import Path
from parallax_runner.driver.run_lock import alone_in
with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_driver_is_refused_until_the_first_has_ended_however_it_did(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "first"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, run_dir], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=r"another run uses this directory.*hydra\.run\.dir"), alone_in(run_dir):
        pass
    assert list(run_dir.iterdir()) == []
    holder.kill()
    holder.wait()
    with alone_in(run_dir):
        pass


def test_it_is_free_again_behind_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            alone_in(tmp_path),
            pytest.raises(ConfigError, match="another run uses this directory"),
            alone_in(tmp_path),
        ):
            pass


HOLD_CHECKPOINTS = """
import sys, time
from parallax_runner.config.frozen import from_plain
from parallax_runner.driver.run_lock import alone_in_checkpoints
with alone_in_checkpoints(from_plain({"action": "train", "ckpt": {"enabled": True, "dir": sys.argv[1]}})):
    print("held", flush=True)
    time.sleep(60)
"""


def config(folder: Path, action: str = "train", *, enabled: bool = True) -> RunConfig:
    return from_plain({"action": action, "ckpt": {"enabled": enabled, "dir": str(folder)}})


def test_two_runs_do_not_save_in_one_folder(tmp_path: Path) -> None:
    """They would remove each other's unfinished checkpoints."""
    folder = tmp_path / "shared" / "ckpt"
    holder = subprocess.Popen([sys.executable, "-c", HOLD_CHECKPOINTS, folder], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(ConfigError, match=r"^ckpt\.dir=.*: another run writes .*set ckpt\.dir=ANOTHER"),
        alone_in_checkpoints(config(folder)),
    ):
        pass
    for other in (config(folder, "verify"), config(folder, enabled=False)):
        with alone_in_checkpoints(other):
            pass
    holder.kill()
    holder.wait()
    with alone_in_checkpoints(config(folder)):
        pass


@pytest.mark.timeout(30)
def test_a_folder_that_cannot_be_locked_is_reported_by_the_chief(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "file" / "below"):
        with alone_in_checkpoints(config(folder)):
            pass
