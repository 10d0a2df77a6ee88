"""How many processes another launcher has started, by its environment variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from parallax_runner.config.launched_processes import LAUNCHERS, Variables, is_sruns_step, worlds
from parallax_runner.errors import ConfigError

WITH_SIZE = [launcher for launcher in LAUNCHERS if launcher.size is not None]
TWO = ["h1:2222", "h2:2222"]


def sizes(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    return [(world.variable, world.size) for world in worlds(environ)]


@pytest.mark.parametrize("launcher", WITH_SIZE, ids=lambda launcher: launcher.size)
def test_size_and_rank_tell_a_world(launcher: Variables) -> None:
    assert launcher.size is not None
    for rank in ("0", "2"):
        assert sizes({launcher.size: "3", launcher.rank: rank}) == [(launcher.size, 3)]
    assert sizes({launcher.size: "1", launcher.rank: "0"}) == []


@pytest.mark.parametrize("launcher", WITH_SIZE, ids=lambda launcher: launcher.size)
def test_a_size_without_a_rank_is_of_another_program(launcher: Variables) -> None:
    assert launcher.size is not None
    assert sizes({launcher.size: "3"}) == sizes({launcher.rank: "2"}) == []
    assert sizes({launcher.size: "all", launcher.rank: "2"}) == sizes({launcher.size: "3", launcher.rank: ""}) == []


def test_pmix_tells_the_rank_alone() -> None:
    assert sizes({"PMIX_RANK": "0"}) == []
    assert sizes({"PMIX_RANK": "1"}) == [("PMIX_RANK", 2)]


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_PROCID": "0"}, []),  # a batch script, which is one process
        ({"SLURM_NTASKS": "4"}, []),  # a shell of salloc
        ({"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, []),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, [("SLURM_STEP_NUM_TASKS", 4)]),
        ({"SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_ID": "2"}, []),  # jobs that know nothing of one another
    ],
)
def test_tasks_of_slurm(environ: dict[str, str], found: list[Any]) -> None:
    assert sizes(environ) == found


def test_what_belongs_to_the_step_of_srun() -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}
    by_pmi = {**step, "PMI_SIZE": "4", "PMI_RANK": "0"}
    assert [is_sruns_step(world, by_pmi) for world in worlds(by_pmi)] == [True, True]
    by_mpirun = {**step, "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "0"}
    assert [is_sruns_step(world, by_mpirun) for world in worlds(by_mpirun)] == [False, True]
    other_rank = {**step, "WORLD_SIZE": "4", "RANK": "1"}
    assert [is_sruns_step(world, other_rank) for world in worlds(other_rank)] == [True, False]
    no_step = {"PMI_SIZE": "4", "PMI_RANK": "0", "SLURM_PROCID": "0"}  # of mpirun in a batch script
    assert [is_sruns_step(world, no_step) for world in worlds(no_step)] == [False]


@pytest.mark.parametrize(
    ("content", "size"),
    [
        ({"cluster": {"worker": TWO}, "task": {"type": "worker", "index": 0}}, 2),
        ({"cluster": {"chief": TWO[:1], "ps": TWO[1:]}, "task": {"type": "ps", "index": 0}}, 2),
        ({"cluster": {"worker": {"1": "h2:2222", "0": "h1:2222"}}, "task": {"type": "worker", "index": 1}}, 2),
        ({"cluster": {"chief": TWO[:1]}, "task": {"type": "evaluator", "index": 0}}, 2),
        ({"cluster": {"worker": TWO[:1]}, "task": {"type": "worker", "index": 0}}, None),
        ({"cluster": {}}, None),
        ({"environment": "cloud"}, None),
        ([], None),
    ],
)
def test_processes_of_tf_config(content: Any, size: int | None) -> None:
    assert sizes({"TF_CONFIG": json.dumps(content)}) == ([] if size is None else [("TF_CONFIG", size)])


def test_tf_config_that_cannot_be_read() -> None:
    assert sizes({"TF_CONFIG": ""}) == []
    with pytest.raises(ConfigError, match=r"TF_CONFIG: not JSON \(.*\); correct it, or unset TF_CONFIG"):
        worlds({"TF_CONFIG": "{"})


def test_a_long_value_is_shortened() -> None:
    (world,) = worlds({"TF_CONFIG": json.dumps({"cluster": {"worker": TWO * 40}})})
    assert world.told.startswith('TF_CONFIG={"cluster": {"worker": ["h1:2222"')
    assert world.told.endswith("…") and len(world.told) == len("TF_CONFIG=") + 81
