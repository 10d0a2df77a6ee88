"""One training does not become several: a driver is refused where another launcher, or a worker, would start many."""

from __future__ import annotations

import json
import multiprocessing
import threading
from typing import Any

import pytest

from parallax_runner.api.first_process import check_first_process
from parallax_runner.config.launched_processes import LAUNCHERS, worlds
from parallax_runner.driver.only_driver import check_only_driver, check_outside_workers, check_started_once
from parallax_runner.errors import ConfigError, LaunchError
from parallax_runner.launch.control import wire

TWO_HOSTS = {"cluster": {"worker": ["one:2222", "two:2222"]}, "task": {"type": "worker", "index": 0}}
# What each launcher sets for the first of two processes.
STARTED = {
    "OMPI_COMM_WORLD_SIZE": {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
    "PMI_SIZE": {"PMI_SIZE": "2", "PMI_RANK": "0"},
    "WORLD_SIZE": {"WORLD_SIZE": "2", "RANK": "1"},
    "HOROVOD_SIZE": {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"},
    "SLURM_STEP_NUM_TASKS": {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "0"},
    "TF_CONFIG": {"TF_CONFIG": json.dumps(TWO_HOSTS)},
}


@pytest.mark.parametrize("variable", STARTED)
def test_several_processes_of_another_launcher_are_refused(variable: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{variable}=.* has started several processes.*unset {variable}"):
        check_started_once("local", environ=STARTED[variable])


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},  # srun -n1
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"},  # the only process of a batch script
        {"WORLD_SIZE": "2"},  # without a rank, it is another program's
        {"TF_CONFIG": json.dumps({"cluster": {"worker": ["one:2222"]}, "task": {"type": "worker", "index": 0}})},
    ],
)
def test_one_process_is_not(environ: dict[str, str]) -> None:
    check_started_once("local", environ=environ)


def test_processes_that_meet_at_a_rendezvous_are_not() -> None:
    check_started_once("manual", environ=STARTED["TF_CONFIG"])


def test_the_first_task_of_srun_is_the_driver_under_slurm() -> None:
    check_started_once("slurm", environ=STARTED["SLURM_STEP_NUM_TASKS"])


def test_a_surplus_task_of_srun_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (STARTED["SLURM_STEP_NUM_TASKS"] | {"SLURM_PROCID": "2"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        check_only_driver("slurm")
    assert ended.value.code == 0


def test_each_launcher_is_recognized() -> None:
    for each in LAUNCHERS:
        environ = {each.rank: "1"} | ({} if each.size is None else {each.size: "4"})
        assert worlds(environ)[0].launcher == each.launcher


def test_a_process_of_a_worker_starts_no_driver() -> None:
    with pytest.raises(LaunchError, match=f"{wire.CONTROL_ADDRESS} is set.*fit would start a run in each worker"):
        check_outside_workers("fit", {wire.CONTROL_ADDRESS: "127.0.0.1:1"})


def test_a_thread_starts_no_driver() -> None:
    told = _told_by(lambda work: threading.Thread(target=work, name="trainer"))
    assert told.startswith("fit was called in the thread 'trainer'")


def _told_by(start: Any) -> str:
    found: list[str] = []

    def work() -> None:
        with pytest.raises(LaunchError) as refused:
            check_first_process("fit")
        found.append(str(refused.value))

    thread = start(work)
    thread.start()
    thread.join()
    return found[0]


def _in_child(queue: Any) -> None:
    try:
        check_first_process("fit")
    except LaunchError as error:
        queue.put(str(error))
    else:
        queue.put("")


def test_a_spawned_child_starts_no_driver() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    told = queue.get(timeout=120)
    child.join()
    assert "fit was called in the child process" in told
