"""A worker that the kernel ends because the memory of its control group ran out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.control_groups import limited_group
from tests.integration.runs import LAUNCH_SECS

ROOT = Path(__file__).parents[2]
LIMIT_BYTES = 1400 << 20
DATA = "{_target_: tests.integration.leaking.load, seed: 1, batch_size: 4}"


def test_the_process_is_named_with_what_it_used(tmp_path: Path) -> None:
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "mine.yaml").write_text(DATA)
    with limited_group("leaking", LIMIT_BYTES) as group:
        if group is None:
            pytest.skip("no control group with a memory limit can be made here")
        own = ("--config-dir", str(tmp_path / "conf"), "model=simple", "data=mine", "comm=mpi", "tracking=off")
        more = ("ckpt=off", "train.steps=100000", f"hydra.run.dir={tmp_path / 'run'}")
        command = [sys.executable, "-m", "parallax_runner", *own, *more]
        done = subprocess.run(
            ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=LAUNCH_SECS,
        )
    assert done.returncode == 1, done.stderr
    assert "note: the processes of this run may need" in done.stderr and group.name in done.stderr
    assert "killed by signal 9 (SIGKILL), and the kernel of this machine has ended processes since" in done.stderr
    assert "It had used" in done.stderr and "action=plan predicts the memory" in done.stderr
