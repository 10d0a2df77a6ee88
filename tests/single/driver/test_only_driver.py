"""Which processes may start a driver: one of a world, and none in a worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.driver.only_driver import check_outside_workers, check_started_once
from parallax_runner.errors import ConfigError, LaunchError
from parallax_runner.launch.control import wire
from tests.single.config.in_process import answer

MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
TF_CONFIG = {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'}


def test_the_message_names_the_variable_and_the_remedy() -> None:
    with pytest.raises(ConfigError) as raised:
        check_started_once("local", once="start it once", environ=MPIRUN)
    assert str(raised.value) == (
        "OMPI_COMM_WORLD_SIZE=2: mpirun has started several processes, and each of them would start a run of its own; "
        "start it once (if this is the only process, unset OMPI_COMM_WORLD_SIZE)"
    )
    with pytest.raises(ConfigError, match=r"^SLURM_STEP_NUM_TASKS=2: srun .*; set cluster=slurm, or start it once \("):
        check_started_once("auto", once="start it once", environ=SRUN)
    with pytest.raises(ConfigError, match=r"to train, start `python -m parallax_runner\.worker` with"):
        check_started_once("auto", environ=TF_CONFIG)


def test_clusters_that_take_one_driver() -> None:
    """Workers that stand by serve one driver, and of the tasks of srun one is the driver."""
    for environ in (MPIRUN, SRUN, TF_CONFIG):
        check_started_once("manual", environ=environ)
    check_started_once("slurm", environ=SRUN)
    check_started_once("slurm", environ={**SRUN, "PMI_SIZE": "2", "PMI_RANK": "0"})
    with pytest.raises(ConfigError, match="OMPI_COMM_WORLD_SIZE=2"):
        check_started_once("slurm", environ={**MPIRUN, **SRUN})


def test_no_driver_in_a_worker() -> None:
    check_outside_workers("fit", {})
    with pytest.raises(LaunchError, match="PARALLAX_CONTROL is set: this process belongs to a worker of another run"):
        check_outside_workers("fit", {wire.CONTROL_ADDRESS: "127.0.0.1:1"})


@pytest.mark.parametrize("command", [(), ("-m", "train.seed=1,2")], ids=["a run", "a sweep"])
def test_the_command_is_refused(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = (*command, "experiment=quick", "tracking=off")
    for variables in (MPIRUN, SRUN, TF_CONFIG):
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            done = answer(*quick, cwd=tmp_path)
            assert done.returncode == 2
            assert done.stderr.count("start a run of its own") == done.stderr.count("\n") == 1
    monkeypatch.setenv(wire.CONTROL_ADDRESS, "127.0.0.1:1")
    done = answer(*quick, cwd=tmp_path)
    assert (done.returncode, "belongs to a worker" in done.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_the_configuration_is_shown_to_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in MPIRUN.items():
        monkeypatch.setenv(name, value)
    assert answer("--help", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(("task", "status"), [("0", 0), ("1", 0)])
def test_a_sweep_under_srun_runs_in_one_task(
    task: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first task would go on to the sweep, which is not run here."""
    from parallax_runner.sweep import sweep

    started: list[object] = []
    monkeypatch.setattr(sweep, "run_sweep", lambda *told: started.append(told) or 0)
    for name, value in {**SRUN, "SLURM_PROCID": task}.items():
        monkeypatch.setenv(name, value)
    done = answer("-m", "experiment=quick", "cluster=slurm", "train.seed=1,2", "tracking=off", cwd=tmp_path)
    assert (done.returncode, len(started)) == (status, 1 if task == "0" else 0), done.stderr
