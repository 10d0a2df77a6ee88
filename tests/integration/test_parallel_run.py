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
from omegaconf import OmegaConf

from parallax_runner.profile.files import run_metadata_files

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


def run(cwd: Path, *, as_module: bool = False, **asked: Any) -> Done:
    """Starts the script plainly, as a file or as a module."""
    script = ["-m", "tests.integration.scripts.train"] if as_module else [str(SCRIPT)]
    result = subprocess.run(
        [sys.executable, *script, json.dumps({"steps": STEPS, **asked})],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
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


def told(done: Done, worker: int, what: str) -> list[str]:
    """What a worker has printed on the terminal, behind `what`."""
    return re.findall(rf"^\[worker {worker}\] {what} ?(.*)$", done.stdout, re.M)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """run_option HYBRID by default, the rows in two pieces, hooks, all checkpoints and a range of profiles."""
    config = {
        "mpi": {"mpirun_options": "-x 'FROM_OPTIONS=of one string'"},
        "ckpt": {"save_ckpt_secs": 0.000001},
        "profile": {"profile_range": (2, 4)},
    }
    return run(tmp_path_factory.mktemp("hybrid"), partitioner=2, hook=STEPS + 1, steps=100, config=config)


def test_hybrid_is_what_one_device_does(hybrid: Done) -> None:
    expect(hybrid)
    assert {v["name"]: v["route"] for v in hybrid.plan["variables"]}["weights"] == "allreduce"


def test_get_partitioner_cuts(hybrid: Done) -> None:
    (table,) = [v for v in hybrid.plan["variables"] if v["name"].startswith("embedding/table")]
    assert [shard["rows"] for shard in table["shards"]] == [3, 3]


def test_what_workers_print_is_on_the_terminal(hybrid: Done) -> None:
    for worker in (0, 1):
        assert told(hybrid, worker, "worker") == [f"{worker} of 2, 1 replica(s), 2 devices"]
    assert "stage rewrite" not in hybrid.stdout + hybrid.stderr  # our own lines are for the logs
    assert "stage rewrite" in (hybrid.run_dir / "logs" / "worker_0.log").read_text()


def test_a_hook_sees_the_loss_and_stops(hybrid: Done) -> None:
    for worker in (0, 1):
        # Beside the steps there is a call for the initializers, and one for the variables at the end.
        assert len(told(hybrid, worker, r"hook \d")) == STEPS + 2
    assert told(hybrid, 0, "hook ends at") == [f"{STEPS}"]


def test_hooks_of_the_chief_alone(hybrid: Done) -> None:
    files = list((hybrid.run_dir.parent / "summaries").iterdir())
    assert len(files) == 1
    events = [event for event in tf.train.summary_iterator(str(files[0])) if event.summary.value]
    assert [event.step for event in events][-1] == STEPS


def test_variables_are_fetched_whole(hybrid: Done) -> None:
    table, weights = one_device(average_sparse=False)
    for worker in (0, 1):
        values = json.loads(told(hybrid, worker, "values")[0])
        np.testing.assert_allclose(values[0], weights, rtol=1e-12)
        np.testing.assert_allclose(values[1], table, rtol=1e-12)


def test_checkpoints_by_seconds(hybrid: Done) -> None:
    assert len(list((hybrid.run_dir / "ckpt").glob("*.index"))) == STEPS


def test_a_string_of_options_for_mpirun(hybrid: Done) -> None:
    assert told(hybrid, 0, "environment") == told(hybrid, 1, "environment") == ["of one string"]


def test_a_range_of_steps_is_profiled_on_all_workers(hybrid: Done) -> None:
    assert profiled(hybrid.run_dir / "profile") == {(worker, step) for worker in (0, 1) for step in (2, 3)}


def profiled(folder: Path) -> set[tuple[int, int]]:
    """(worker, step) of each RunMetadata."""
    return {(rank, step) for step, by_rank in run_metadata_files(folder).items() for rank in by_rank}


@pytest.fixture(scope="module")
def mpi(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """run_option MPI with all its options; two train ops take turns."""
    cwd = tmp_path_factory.mktemp("mpi")
    config = {
        "run_option": "MPI",
        "average_sparse": True,
        "redirect_path": "logs",
        "export_graph_path": "graphs",
        "mpi": {"mpirun_options": ["-x", "FROM_OPTIONS=of a list"], "use_allgatherv": True},
        "profile": {"profile_steps": [2], "profile_dir": "profile", "profile_worker": 1},
        "ckpt": {"ckpt_dir": "ckpt", "save_ckpt_steps": 3},
    }
    done = run(cwd, config=config, cpus=3, critic=True)
    assert done.status == 0, done.stderr
    return done


def test_mpi_averages_sparse_gradients(mpi: Done) -> None:
    expect(mpi, average_sparse=True, folder=mpi.run_dir.parent / "ckpt")
    assert mpi.plan["comm"] == "mpi" and mpi.plan["servers"] == 0


def test_a_second_train_op_takes_turns(mpi: Done) -> None:
    # Its gradient is the mean of [0, 1] and [2, 3].
    critic = mpi.checkpoint(mpi.run_dir.parent / "ckpt")["critic"]
    np.testing.assert_allclose(critic, 1 - STEPS * RATE * np.array([1.0, 2.0]), rtol=1e-12)


def test_logs_are_redirected(mpi: Done) -> None:
    assert "worker 1 of 2, 1 replica(s)" in (mpi.run_dir.parent / "logs" / "worker_1.log").read_text()
    assert "worker 1 of 2" not in mpi.stdout + mpi.stderr and "plan: comm" not in mpi.stdout + mpi.stderr


def test_a_session_s_own_configuration(mpi: Done) -> None:
    assert "1 replica(s), 3 devices" in (mpi.run_dir / "logs" / "worker_1.log").read_text()


def test_a_list_of_options_for_mpirun(mpi: Done) -> None:
    assert "environment of a list" in (mpi.run_dir / "logs" / "worker_1.log").read_text()


def test_graphs_are_exported(mpi: Done) -> None:
    for worker in (0, 1):
        assert any("Allreduce" in op for op in ops_of(mpi.run_dir.parent / "graphs" / f"worker_{worker}.meta"))


def test_sparse_gradients_travel_by_allgatherv(mpi: Done) -> None:
    ops = ops_of(mpi.run_dir.parent / "graphs" / "worker_0.meta")
    assert "HorovodAllgather" not in ops and "PyFunc" in ops  # MPI is called from Python


def ops_of(meta_graph: Path) -> set[str]:
    """The types of a graph's ops; Horovod's are not known here, so it is not imported."""
    return {node.op for node in tf.MetaGraphDef.FromString(meta_graph.read_bytes()).graph_def.node}


def test_checkpoints_by_steps_in_their_own_folder(mpi: Done) -> None:
    folder = mpi.run_dir.parent / "ckpt"
    # Both train ops count, and the last step is saved.
    assert {int(path.stem.rpartition("-")[2]) for path in folder.glob("*.index")} == {3, 6, 8}


def test_one_step_of_one_worker_is_profiled(mpi: Done) -> None:
    assert profiled(mpi.run_dir.parent / "profile") == {(1, 2)}


def test_ps_with_replicas_goes_on_from_ckpt_dir_in_another_cluster(tmp_path: Path) -> None:
    """First two workers with two replicas each, whose rows are in two pieces; then one worker."""
    config = {"run_option": "PS", "average_sparse": True, "ckpt": {"ckpt_dir": str(tmp_path / "ckpt")}}
    first = run(
        tmp_path,
        steps=1,
        run_dir="first",
        partitioner=2,
        resources=None,
        overrides=["cluster.replicas_per_worker=2", "cluster.servers=2"],
        config={**config, "ps": {"local_aggregation": False}},
    )
    assert first.status == 0, first.stderr
    assert told(first, 1, "worker") == ["1 of 2, 2 replica(s), 4 devices"]
    assert OmegaConf.load(tmp_path / "first" / "config.yaml").comm.ps.local_aggregation is False
    (tmp_path / "hosts").write_text("# one host\nlocalhost: 0,1\n")
    # A comma at the end of the line, as the original's own example has it.
    rest = run(tmp_path, as_module=True, steps=STEPS - 1, resources="hosts", config={**config, "run_option": ("PS",)})
    expect(rest, average_sparse=True, folder=tmp_path / "ckpt")
    assert told(rest, 0, "worker") == ["0 of 1, 2 replica(s), 3 devices"]
    assert OmegaConf.load(rest.run_dir / "config.yaml").comm.ps.local_aggregation is True


def test_without_waiting_for_each_other(tmp_path: Path) -> None:
    done = run(tmp_path, resources=None, sync=False, config={"run_option": "PS", "ckpt": {"save_ckpt_steps": 1}})
    assert done.status == 0, done.stderr
    # Each push counts, and all of them are in the last checkpoint.
    assert done.checkpoint()["global_step"] == 2 * STEPS
    assert json.loads((done.run_dir / "summary.json").read_text())["staleness_max"] is not None


def test_the_search_for_a_number_of_partitions(tmp_path: Path) -> None:
    config = {"run_option": "PS", "search_partitions": True}
    overrides = ["partition.max=2", "partition.steps_per_trial=2"]
    done = run(tmp_path, partitioner=1, config=config, overrides=overrides)
    expect(done)
    summary = json.loads((done.run_dir / "summary.json").read_text())
    assert sorted(summary["partition_candidates"]) == [1, 2]
    (table,) = [v for v in done.plan["variables"] if v["name"].startswith("embedding/table")]
    assert len(table["shards"]) == summary["partition_choice"]
    assert len(told(done, 0, "values")) == 1  # what is printed in trials is for their logs


def test_a_failing_worker_shows_its_traceback_once(tmp_path: Path) -> None:
    done = run(tmp_path, fails=1, config={"run_option": "PS"}, resources=None)
    assert done.status == 1
    assert done.stderr.count("Traceback") == 1 and "Traceback" not in done.stdout
    lines = [line.strip() for line in done.stderr.splitlines()]
    start = lines.index("Traceback (most recent call last):")
    assert f'File "{SCRIPT}", line ' in lines[start + 1]
    assert lines[start + 2 : start + 4] == [
        'raise RuntimeError("broken on purpose")',
        "RuntimeError: broken on purpose",
    ]
    assert "parallax_runner: worker 1" in done.stderr
    assert "Traceback" in (done.run_dir / "logs" / "worker_1.log").read_text()


def test_the_exit_status_of_a_script_is_the_runs(tmp_path: Path) -> None:
    assert run(tmp_path, exits=0).status == 7


@pytest.mark.parametrize("option", ["PS", "MPI"])
def test_a_worker_that_ends_early_is_told(tmp_path: Path, option: str) -> None:
    done = run(tmp_path, ends=[1, 2], resources=None, config={"run_option": option})
    assert done.status == 1
    assert "the script of worker 1 ended after step 2, and worker 0 waits for it in step 3" in done.stderr
    assert "Traceback" not in done.stderr
