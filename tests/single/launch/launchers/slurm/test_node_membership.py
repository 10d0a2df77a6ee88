"""Which nodes a job still has, as Slurm's controller shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_runner.launch.launchers.slurm.node_membership import is_this_node, nodes_of_job

# What Slurm 22.05 shows of a job with --no-kill that has lost n2.
SHOWN = """JobId=1 JobName= NodeList=n9
   JobState=RUNNING Reason=None Dependency=(null)
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1,3-4]
   BatchHost=n1
"""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "scontrol"


def answer(scontrol: Path, script: str) -> None:
    scontrol.write_text(f"#!/bin/sh\n{script}\n")
    scontrol.chmod(0o755)


def test_the_nodes_that_a_job_has_now(scontrol: Path) -> None:
    answer(scontrol, f'[ "$*" = "show job 7" ] || exit 1\ncat <<END\n{SHOWN}END')
    assert nodes_of_job("7") == {"n1", "n3", "n4"}


def test_a_controller_that_does_not_answer_tells_nothing(scontrol: Path) -> None:
    answer(scontrol, "echo Unable to contact slurm controller >&2; exit 1")
    assert nodes_of_job("7") is None
    answer(scontrol, "echo JobId=7")
    assert nodes_of_job("7") is None


def test_a_node_is_known_by_slurm_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert is_this_node("n1") and not is_this_node("localhost")
    monkeypatch.delenv("SLURMD_NODENAME")
    assert is_this_node("localhost") and not is_this_node("n1")
