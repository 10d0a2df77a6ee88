"""A worker that the kernel ends because the memory of its control group ran out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.control_groups import enter, limited_group
from tests.integration.runs import LAUNCH_SECS, launch
from tests.integration.slurm_cluster import Slurm, lacks
from tests.integration.test_hosts import needs_network, run_module
from tests.integration.test_slurm import TWO_NODES, log_of, wait_for_step

ROOT = Path(__file__).parents[2]
LIMIT_BYTES = 1400 << 20
DATA = "{_target_: tests.integration.leaking.load, seed: 1, batch_size: 4}"


def leaking(folder: Path) -> list[str]:
    """Returns the command line of a run whose workers need more and more memory."""
    (folder / "conf" / "data").mkdir(parents=True)
    (folder / "conf" / "data" / "mine.yaml").write_text(DATA)
    own = ["--config-dir", str(folder / "conf"), "model=simple", "data=mine", "comm=mpi", "tracking=off", "ckpt=off"]
    return [*own, "train.steps=100000"]


def test_the_process_is_named_with_what_it_used(tmp_path: Path) -> None:
    with limited_group("leaking", LIMIT_BYTES) as group:
        if group is None:
            pytest.skip("no control group with a memory limit can be made here")
        run_dir = f"hydra.run.dir={tmp_path / 'run'}"
        command = [sys.executable, "-m", "parallax_runner", *leaking(tmp_path), run_dir]
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


@needs_network
def test_the_process_on_another_host_is_named_with_what_it_used(tmp_path: Path) -> None:
    words = [str(tmp_path), str(LIMIT_BYTES), *leaking(tmp_path)]
    done = run_module("tests.integration.memory_of_a_host", *words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    if told is None:
        pytest.skip("no control group with a memory limit can be made here")
    # mpirun does not report the signal of a rank on another host.
    assert re.search(r"worker 1 on h2: .+, and the kernel of h2 has ended processes since the start because", told)
    assert "It had used" in told and "action=plan predicts the memory" in told


@pytest.mark.skipif(lacks() is not None, reason=str(lacks()))
def test_the_process_on_a_node_of_slurm_is_named_with_what_it_used(slurm: Slurm, tmp_path: Path) -> None:
    run = launch(*leaking(tmp_path), *TWO_NODES, cwd=tmp_path, is_forked=False).expect_success()
    found = re.search(r"submitted as job (\d+);", run.stderr)
    assert found is not None, run.stderr
    job = found[1]
    with limited_group("of_a_node", LIMIT_BYTES) as group:
        if group is None:
            slurm.command("scancel", job)
            pytest.skip("no control group with a memory limit can be made here")
        wait_for_step(run, job)
        enter(group, slurm.process_on("n2", "parallax_runner.worker"))
        assert slurm.wait_for(job, "FAILED") == "FAILED"
    said = log_of(run, job)
    assert re.search(r"worker 1 on n2: .+, and the kernel of n2 has ended processes since the start because", said), (
        said
    )
    assert "It had used" in said and "action=plan predicts the memory" in said
