"""A worker that the kernel ends because the memory of its control group ran out."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.runs import LAUNCH_SECS

ROOT = Path(__file__).parents[2]
GROUPS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}
LIMIT_BYTES = 1400 << 20
DATA = "{_target_: tests.integration.leaking.load, seed: 1, batch_size: 4}"


@contextlib.contextmanager
def limited_group() -> Iterator[Path]:
    """Makes a control group with little memory, in either version. Skips the test if that is not possible."""
    for top, name in GROUPS.items():
        group = top / f"parallax_test_{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(LIMIT_BYTES))
            yield group
            return
        except OSError:
            continue
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
    pytest.skip("no control group with a memory limit can be made here")


def test_the_process_is_named_with_what_it_used(tmp_path: Path) -> None:
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "mine.yaml").write_text(DATA)
    with limited_group() as group:
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
