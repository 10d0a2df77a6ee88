"""Scripts that call parallel_run, started plainly, with real workers and servers."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "train.py"
STEPS = 4
RATE = float(np.float32(0.1))  # TensorFlow casts it on the way to float64


@dataclasses.dataclass(frozen=True)
class Done:
    """A script that has ended."""

    run_dir: Path
    status: int
    stdout: str
    stderr: str

    def checkpoint(self, folder: Path | None = None) -> dict[str, np.ndarray]:
        """The variables of the last checkpoint."""
        reader = tf.train.load_checkpoint(str(folder or self.run_dir / "ckpt"))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

    @property
    def plan(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "plan.json").read_text())


def run(cwd: Path, **asked: Any) -> Done:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps({"steps": STEPS, **asked})],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Done(cwd / "out", result.returncode, result.stdout, result.stderr)


def one_device(*, average_sparse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Table and weights after STEPS steps on the mean of two replicas' gradients, in NumPy."""
    table, weights = np.ones([6, 2]), np.ones(2)
    for _ in range(STEPS):
        sparse, dense = np.zeros_like(table), np.zeros_like(weights)
        for ids in ([0, 1, 2, 2], [2, 3, 4, 5]):
            slope = 2 * (table[ids] @ weights - 3.0) / 4
            np.add.at(sparse, ids, slope[:, None] * weights)
            dense += slope @ table[ids]
        table, weights = table - RATE * sparse / (2 if average_sparse else 1), weights - RATE * dense / 2
    return table, weights


def expect(done: Done, *, average_sparse: bool = False, folder: Path | None = None) -> None:
    assert done.status == 0, done.stderr
    table, weights = one_device(average_sparse=average_sparse)
    saved = done.checkpoint(folder)
    np.testing.assert_allclose(saved["embedding/table"], table, rtol=1e-12)
    np.testing.assert_allclose(saved["weights"], weights, rtol=1e-12)
    assert saved["global_step"] == STEPS


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """run_option HYBRID, the rows in two pieces, and a hook."""
    return run(tmp_path_factory.mktemp("hybrid"), partitioner=2, hook=STEPS, steps=100)


def test_hybrid_is_what_one_device_does(hybrid: Done) -> None:
    expect(hybrid)
    assert {v["name"]: v["route"] for v in hybrid.plan["variables"]}["weights"] == "allreduce"


def test_get_partitioner_cuts(hybrid: Done) -> None:
    (table,) = [v for v in hybrid.plan["variables"] if v["name"].startswith("embedding/table")]
    assert [shard["rows"] for shard in table["shards"]] == [3, 3]


def test_what_workers_print_is_on_the_terminal(hybrid: Done) -> None:
    for worker in (0, 1):
        assert f"[worker {worker}] worker {worker} of 2, 1 replica(s)" in hybrid.stdout
    assert "stage rewrite" not in hybrid.stdout + hybrid.stderr  # our own lines are for the logs
    assert "stage rewrite" in (hybrid.run_dir / "logs" / "worker_0.log").read_text()


def test_a_hook_sees_the_loss_and_stops(hybrid: Done) -> None:
    assert len(re.findall(r"^\[worker 1\] hook \d ", hybrid.stdout, re.M)) == STEPS + 1
    assert f"[worker 0] hook ends at {STEPS}" in hybrid.stdout


def test_variables_are_fetched_by_name(hybrid: Done) -> None:
    values = json.loads(re.findall(r"^\[worker 1\] values (.*)$", hybrid.stdout, re.M)[0])
    np.testing.assert_allclose(values[0], one_device(average_sparse=False)[1], rtol=1e-12)


def test_mpi_with_options_redirected_and_exported(tmp_path: Path) -> None:
    logs, graphs = tmp_path / "logs", tmp_path / "graphs"
    config = {
        "run_option": "MPI",
        "average_sparse": True,
        "redirect_path": str(logs),
        "export_graph_path": str(graphs),
        "mpi": {"mpirun_options": ["-x", "FROM_THE_LIST=1"]},
        "profile": {"profile_steps": [2], "profile_dir": str(tmp_path / "profile"), "profile_worker": 1},
        "ckpt": {"ckpt_dir": str(tmp_path / "ckpt"), "save_ckpt_steps": 2},
    }
    done = run(tmp_path, config=config, cpus=3)
    expect(done, average_sparse=True, folder=tmp_path / "ckpt")
    assert done.plan["comm"] == "mpi" and done.plan["servers"] == 0
    assert "worker 0 of 2" not in done.stdout and "step" not in done.stdout
    assert "worker 1 of 2, 1 replica(s), 3 devices" in (logs / "worker_1.log").read_text()
    assert "FROM_THE_LIST=1" in (logs / "driver.log").read_text()
    for worker in (0, 1):
        with tf.Graph().as_default() as graph:
            tf.train.import_meta_graph(str(graphs / f"worker_{worker}.meta"))
        assert any(op.type == "HorovodAllreduce" for op in graph.get_operations())
    assert {path.name for path in (tmp_path / "ckpt").glob("*.index")} == {"model.ckpt-2.index", "model.ckpt-4.index"}
    profiled = [path for path in (tmp_path / "profile").rglob("*") if path.is_file()]
    assert any("1" in path.name for path in profiled)


def test_ps_drives_two_replicas_and_goes_on_from_ckpt_dir(tmp_path: Path) -> None:
    ckpt = str(tmp_path / "ckpt")
    first = run(tmp_path, steps=1, run_dir="first", config={"run_option": "PS", "ckpt": {"ckpt_dir": ckpt}})
    assert first.status == 0, first.stderr
    rest = run(tmp_path, steps=STEPS - 1, config={"run_option": ("PS",), "ckpt": {"ckpt_dir": ckpt}})
    expect(rest, folder=tmp_path / "ckpt")
    assert "[worker 0] worker 0 of 1, 2 replica(s)" in rest.stdout


def test_a_failing_worker_shows_its_traceback(tmp_path: Path) -> None:
    done = run(tmp_path, fails=1)
    assert done.status == 1
    assert "worker 1" in done.stderr and "RuntimeError: broken on purpose" in done.stderr
    assert "scripts/train.py" in done.stderr


def test_the_exit_status_of_a_script_is_the_runs(tmp_path: Path) -> None:
    assert run(tmp_path, exits=0).status == 7


def test_what_is_wrong_is_told_in_one_message(tmp_path: Path) -> None:
    done = run(tmp_path, config={"run_option": "MPI"}, sync=False)
    assert done.status == 2
    assert "comm.sync=false (parallel_run)" in done.stderr and "Traceback" not in done.stderr
