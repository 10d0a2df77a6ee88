"""One driver at a time in a run directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parallax_runner.driver.run_lock import alone_in
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
