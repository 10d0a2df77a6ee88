"""What Slurm's variables say of an allocation, and what is refused under it."""

from __future__ import annotations

import signal

import pytest

from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.schema import ClusterConfig
from parallax_runner.errors import ConfigError
from parallax_runner.launch.launchers.slurm.allocation import (
    expand,
    host_lines,
    is_surplus_task,
    sweep_job_id,
    tasks_per_node,
    warning_signal,
)
from tests.single.config.test_composition import compose

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in JOB:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],gpu-a", ["n08", "n09", "n10", "n12", "gpu-a"]),
        ("a,b[1],c", ["a", "b1", "c"]),
        ("rack[1-2]-n[1-2].x", ["rack1-n1.x", "rack1-n2.x", "rack2-n1.x", "rack2-n2.x"]),
        ("", []),
    ],
)
def test_names_of_nodes(short: str, names: list[str]) -> None:
    assert expand(short) == names


def test_numbers_of_tasks() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(ConfigError, match=r"SLURM_TASKS_PER_NODE='2\(x': expected numbers such as"):
        tasks_per_node("2(x")


def test_an_allocation_is_a_list_of_hosts() -> None:
    assert host_lines(ClusterConfig(nodes=9), JOB) == ("n1: 0,1", "n2: 0,1")
    # Of a job without --ntasks each node counts as one.
    assert host_lines(ClusterConfig(), {**JOB, "SLURM_TASKS_PER_NODE": ""}) == ("n1: 0", "n2: 0")
    with pytest.raises(ConfigError, match=r"expected a number of tasks for each node"):
        host_lines(ClusterConfig(), {**JOB, "SLURM_TASKS_PER_NODE": "2"})


def test_of_several_tasks_one_is_the_driver() -> None:
    assert is_surplus_task({"SLURM_STEP_ID": "0", "SLURM_PROCID": "3"})
    assert not is_surplus_task({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"})
    assert not is_surplus_task({"SLURM_PROCID": "0"})
    assert not is_surplus_task({})


def test_a_job_of_a_sweep_knows_its_id_and_what_warns_it() -> None:
    by_submitit = {**JOB, "SUBMITIT_EXECUTOR": "slurm"}
    in_array = {**by_submitit, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    assert [sweep_job_id(one) for one in (JOB, by_submitit, in_array)] == [None, JOB["SLURM_JOB_ID"], "7_3"]
    assert warning_signal(JOB) == signal.SIGUSR1
    assert warning_signal(by_submitit) == signal.SIGUSR2
    assert warning_signal({**by_submitit, "SUBMITIT_PREEMPT_SIGNAL": "USR1"}) == signal.SIGUSR1


def test_processes_follow_from_the_allocation(in_job: None) -> None:
    sized = size_cluster(compose("cluster=slurm", "comm=hybrid", "cluster.nodes=5")).cluster
    assert (sized.workers, sized.servers, sized.resource_info) == (4, 2, ("n1: 0,1", "n2: 0,1"))
    sized = size_cluster(compose("cluster=slurm", "comm=ps")).cluster
    assert (sized.workers, sized.replicas_per_worker, sized.servers) == (2, 2, 2)


def test_processes_follow_from_what_is_submitted() -> None:
    sized = size_cluster(compose("cluster=slurm", "comm=mpi", "cluster.nodes=3", "cluster.tasks_per_node=4")).cluster
    assert (sized.workers, sized.servers) == (12, 3)


ELASTIC = ("cluster=slurm", "comm=mpi", "cluster.tasks_per_node=2", "cluster.min_workers=1", "train.max_restarts=1")


def test_a_run_whose_number_changes_is_planned_for_what_it_requests(in_job: None) -> None:
    """The examples of a step follow from the request. The run is planned again for the allocation."""
    sized = size_cluster(compose(*ELASTIC, "cluster.nodes=3")).cluster
    assert (sized.workers, sized.servers) == (6, 3)
    assert sized.resource_info == ("node1: 0,1", "node2: 0,1", "node3: 0,1")
    sized = size_cluster(compose(*ELASTIC, "cluster.nodes=2")).cluster
    assert sized.resource_info == ("n1: 0,1", "n2: 0,1"), "the allocation is the one that was requested"
    four = host_lines(ClusterConfig(nodes=2, tasks_per_node=4, min_workers=1), JOB)
    assert four == ("n1: 0,1,2,3", "n2: 0,1,2,3"), "the number of Slurm's tasks is another one"
    shown = size_cluster(compose(*ELASTIC, "cluster.nodes=3", "action=plan")).cluster
    assert shown.workers == 6, "the plan is that of the training"
    fixed = size_cluster(compose(*ELASTIC, "cluster.nodes=3", "action=verify")).cluster
    assert fixed.workers == 4, "only a training changes its number"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["cluster.workers=4"], "cluster.workers=4 .*under Slurm, this number follows from the job's allocation"),
        (["cluster.resource_info=[localhost]"], "under Slurm the job determines the hosts"),
        (["comm=local"], "try cluster=local|this mode runs one process, but a Slurm job has several tasks"),
        (["cluster.time_limit=soon"], "cluster.time_limit=soon .*expected .*minutes, hours:minutes:seconds"),
    ],
)
def test_what_makes_no_sense_under_slurm_is_refused(lines: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        compose("cluster=slurm", *lines)


def test_uneven_tasks_have_no_replicas(in_job: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3,1")
    assert size_cluster(compose("cluster=slurm", "comm=mpi")).cluster.workers == 4
    with pytest.raises(ConfigError, match="3 on n1, 1 on n2"):
        compose("cluster=slurm", "comm=ps")


def test_options_of_a_job_go_with_slurm() -> None:
    assert compose("cluster=slurm", "cluster.time_limit='1-12:30:00'").cluster.time_limit == "1-12:30:00"
    assert compose("cluster=slurm", "cluster.time_limit=90").cluster.time_limit == 90


def test_a_step_on_some_nodes_of_its_job_is_told() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "1", "SLURM_STEP_ID": "0"}
    with pytest.raises(ConfigError, match=r"a step with 1 of the 3 nodes .* without srun, or with srun --nodes=3"):
        host_lines(compose("cluster=slurm").cluster, step)
