"""What the driver finds wrong with what a process says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallax_runner.launch.job import Job
from parallax_runner.launch.proof import LaunchProof, World, claim, fault_of

PLAN = "f00d"


def fault(**change: Any) -> str | None:
    return fault_of({"rank": 1, "world_size": 4, "plan": PLAN, **change}, PLAN, index=1, workers=4)


def test_a_process_that_is_as_planned_has_no_fault() -> None:
    assert fault() is None
    # A server, or a worker of a plan without collectives.
    assert fault(rank=None, world_size=None) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rank": 0, "world_size": 1}, "alone in an MPI world of 1 process, expected one world of 4 workers"),
        ({"world_size": 8}, "its MPI world has 8 processes, expected 4 workers"),
        ({"rank": 2}, "it is rank 2 of its MPI world, expected rank 1"),
        ({"plan": "bad"}, "a plan.json with the fingerprint bad, but the driver wrote one with f00d"),
    ],
)
def test_what_departs_from_the_plan_is_named(change: dict[str, Any], told: str) -> None:
    assert told in (fault(**change) or "")


def test_one_worker_alone_is_a_whole_world() -> None:
    assert fault_of({"rank": 0, "world_size": 1, "plan": PLAN}, PLAN, index=0, workers=1) is None


def test_a_launch_is_proven_when_all_have_spoken(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    proof = LaunchProof(Job(tmp_path, workers=2, servers=1))
    assert proof.take("worker", 0, claim(tmp_path, World(0, 2))) is None
    assert proof.take("worker", 1, claim(tmp_path, World(1, 2))) is None
    assert not proof.is_complete
    assert proof.take("server", 0, claim(tmp_path, None)) is None
    assert proof.is_complete


def test_a_host_that_sees_an_older_plan_is_found(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    older = claim(tmp_path, World(1, 2))
    (tmp_path / "plan.json").write_text('{"workers": 2}')
    proof = LaunchProof(Job(tmp_path, workers=2))
    assert "it read a plan.json with the fingerprint" in (proof.take("worker", 1, older) or "")
    assert not proof.is_complete
