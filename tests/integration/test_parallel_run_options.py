"""The options of `parallax.Config` in two runs with real workers: HYBRID, whose rows are in two pieces, and MPI."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.config.gpus import detect_gpus
from parallax_runner.profile.run_metadata_files import run_metadata_files
from tests.integration.scripted import RATE, STEPS, Done, expect, one_device, run, told


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The default run_option HYBRID, with rows in two pieces, hooks, all checkpoints and a range of profiles."""
    config = {
        "mpi": {"mpirun_options": "-x 'FROM_OPTIONS=of one string'"},
        "ckpt": {"save_ckpt_secs": 0.000001},
        "profile": {"profile_range": (2, 4)},
    }
    asked = {"partitioner": 2, "hook": STEPS + 1, "steps": 100, "scope": "/gpu:0"}
    return run(tmp_path_factory.mktemp("hybrid"), **asked, config=config)


def test_hybrid_is_what_one_device_does(hybrid: Done) -> None:
    expect(hybrid)
    assert {v["name"]: v["route"] for v in hybrid.plan["variables"]}["weights"] == "allreduce"


@pytest.mark.skipif(bool(detect_gpus()), reason="a GPU is here")
def test_what_is_on_a_gpu_runs_without_one_and_the_plan_tells(hybrid: Done) -> None:
    (moved,) = hybrid.plan["moved"]
    assert (moved["device"], moved["to"]) == ("/device:GPU:0", "/device:CPU:0")
    told = f"soft placement: {moved['ops']} ops move from /device:GPU:0, which does not exist, to /device:CPU:0"
    assert moved["ops"] > 50 and told in hybrid.stderr


def test_get_partitioner_cuts(hybrid: Done) -> None:
    (table,) = [v for v in hybrid.plan["variables"] if v["name"].startswith("embedding/table")]
    assert [shard["rows"] for shard in table["shards"]] == [3, 3]


def test_what_workers_print_is_on_the_terminal(hybrid: Done) -> None:
    for worker in (0, 1):
        assert told(hybrid, worker, "worker") == [f"{worker} of 2, 1 replica(s), 2 devices"]
    assert "stage rewrite" not in hybrid.stdout + hybrid.stderr  # our own lines go only to the logs
    assert "stage rewrite" in (hybrid.run_dir / "logs" / "worker_0.log").read_text()


def test_a_hook_sees_the_loss_and_stops(hybrid: Done) -> None:
    for worker in (0, 1):
        # In addition to the steps, there is a call for the initializers, and one for the variables at the end.
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
    """Returns (worker, step) of each RunMetadata."""
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
        assert "ParallaxSum" in ops_of(mpi.run_dir.parent / "graphs" / f"worker_{worker}.meta")


def test_sparse_gradients_travel_by_allgatherv(mpi: Done) -> None:
    ops = ops_of(mpi.run_dir.parent / "graphs" / "worker_0.meta")
    assert "ParallaxGather" not in ops and "PyFunc" in ops  # MPI is called from Python


def ops_of(meta_graph: Path) -> set[str]:
    """Returns the types of a graph's ops. The graph is not imported: some ops are not registered here."""
    return {node.op for node in tf.MetaGraphDef.FromString(meta_graph.read_bytes()).graph_def.node}


def test_checkpoints_by_steps_in_their_own_folder(mpi: Done) -> None:
    folder = mpi.run_dir.parent / "ckpt"
    # Both train ops count, and the last step is saved.
    assert {int(path.stem.rpartition("-")[2]) for path in folder.glob("*.index")} == {3, 6, 8}


def test_one_step_of_one_worker_is_profiled(mpi: Done) -> None:
    assert profiled(mpi.run_dir.parent / "profile") == {(1, 2)}
