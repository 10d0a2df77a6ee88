"""comm.mpi.use_allgatherv from the command line, and its refusals without MPI."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.runs import launch

SHORT = ("comm=mpi", "comm.mpi.use_allgatherv=true", "train.steps=3", "tracking=off", "ckpt=off")


def test_a_run_equals_one_device(lm: tuple[str, ...], tmp_path: Path) -> None:
    """Without servers, the run also has nothing to search: a choice without effect changes nothing."""
    run = launch(*lm, *SHORT, "action=verify", "partition=search", cwd=tmp_path).expect_success()
    assert "partition=search (command line): this choice has no effect, because comm=mpi has no servers" in run.stderr
    assert "\nsearch: " not in run.stderr and not (run.run_dir / "search").exists()
    assert "partition_choice" not in run.summary and run.plan["notes"] == [
        "tensors are exchanged by the native exchanges: comm.backend=auto",
        "sparse gradients are gathered by MPI's Allgatherv: comm.mpi.use_allgatherv=true",
    ]
    assert run.plan["use_allgatherv"] is True
    assert {variable["route"] for variable in run.plan["variables"]} >= {"allreduce", "allgather"}
    assert run.summary["status"] == "finished"


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("HOROVOD_CPU_OPERATIONS=gloo", "needs MPI, but HOROVOD_CPU_OPERATIONS=gloo connects the ranks through Gloo"),
        ("HOROVOD_MPI_THREADS_DISABLE=1", "needs MPI_THREAD_MULTIPLE"),
    ],
)
def test_refused_before_training(lm: tuple[str, ...], tmp_path: Path, variable: str, words: str) -> None:
    """Variables with which Horovod leaves out what this key needs."""
    options = ("comm.backend=horovod", f"comm.mpi.mpirun_options='-x {variable}'")
    run = launch(*lm, *SHORT, *options, cwd=tmp_path)
    assert run.exit_status != 0
    assert f"comm.mpi.use_allgatherv=true (command line): this key {words}" in run.stderr
    assert run.summary["status"] == "failed"
    assert run.summary["steps"] == 0
