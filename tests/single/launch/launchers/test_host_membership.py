"""Which hosts a run can have: remote shells that answer, do not, and answer again."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.compose import Composer
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.worker_numbers import ClusterSize, with_size
from parallax_runner.driver.check import checked_job
from parallax_runner.errors import LaunchError
from parallax_runner.launch.launchers import host_membership
from parallax_runner.launch.launchers.choose import launcher_of
from parallax_runner.launch.launchers.host_membership import HostMembership
from parallax_runner.launch.launchers.hosts import OverHosts

FIRST, SECOND = "192.0.2.7", "192.0.2.8"
LINES = ("localhost: 0", f"{FIRST}: 0,1", f"{SECOND}: 0")
SECS = 20.0


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_membership, "BETWEEN_SECS", 0.05)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run on three hosts. Its remote shell does not reach a host while a file with the host's name exists."""
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\n[ -e {tmp_path}/$1 ] && echo no route >&2 && exit 255\nshift; exec sh -c "$*"\n')
    shell.chmod(0o755)
    settings = ("model=simple", "comm=sharded", "tracking=off", "cluster=hosts", "cluster.min_workers=1")
    places = (f"cluster.resource_info={list(LINES)}", f"cluster.remote_shell={shell}", "train.max_restarts=1")
    folders = (f"hydra.run.dir={tmp_path / 'run'}", f"ckpt.dir={tmp_path / 'ckpt'}")
    (tmp_path / "run").mkdir()
    (tmp_path / "ckpt").mkdir()
    return size_cluster(checked_job(Composer().job([*settings, *places, *folders])))


def never() -> bool:
    return False


def members_of(config: RunConfig, *numbers: int) -> HostMembership:
    plan: Any = SimpleNamespace(worker_numbers=numbers)
    return HostMembership(config, plan)


def test_all_hosts_are_there(config: RunConfig, tmp_path: Path) -> None:
    assert members_of(config, 1, 2, 4).available(SECS, never) == ClusterSize(4, 3, LINES)
    assert list((tmp_path / "run").iterdir()) == []


def test_the_first_hosts_whose_slots_suffice_are_used(config: RunConfig) -> None:
    assert members_of(config, 1, 2).available(SECS, never) == ClusterSize(2, 2, ("localhost: 0", f"{FIRST}: 0"))


def test_a_lost_host_is_told_and_waited_for_and_then_left_out(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FIRST).touch()
    members = members_of(config, 1, 2, 4)
    begun_secs = time.monotonic()
    assert members.available(1.0, never) == ClusterSize(2, 2, ("localhost: 0", f"{SECOND}: 0"))
    assert time.monotonic() > begun_secs + 1.0
    [line] = capsys.readouterr().err.splitlines()
    assert f"host '{FIRST}' in cluster.resource_info cannot be reached: no route" in line
    assert line.endswith("The run waits for this host, for at most 1 s")
    back = threading.Timer(0.5, (tmp_path / FIRST).unlink)
    back.start()
    assert members.available(SECS, never).workers == 4, "all are there again, so it does not wait longer"
    back.join()


def test_a_lost_host_is_told_even_if_the_time_is_over(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FIRST).touch()
    assert members_of(config, 1, 2, 4).available(0.0, never).workers == 2
    assert capsys.readouterr().err.count(f"host '{FIRST}' in cluster.resource_info cannot be reached") == 1


def test_a_first_start_with_too_few_hosts_fails(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / FIRST).touch()
    with pytest.raises(LaunchError, match=f"host '{FIRST}' in cluster.resource_info cannot be reached: no route"):
        members_of(config, 3, 4).available(0.2, never)


def test_a_restart_waits_longer_for_enough_hosts(config: RunConfig, tmp_path: Path) -> None:
    members = members_of(config, 3, 4)
    assert members.available(0.2, never).workers == 4
    (tmp_path / FIRST).touch()
    back = threading.Timer(2.0, (tmp_path / FIRST).unlink)
    back.start()
    assert members.available(0.2, never).workers == 4
    back.join()


def test_a_run_that_is_stopped_waits_for_no_host(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / FIRST).touch()
    members_of(config, 3, 4).available(SECS, lambda: True)


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return time.monotonic() < deadline


def test_a_host_that_answers_again_is_noticed_while_the_others_train(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / FIRST).touch()
    members = members_of(config, 1, 2, 4)
    running = members.available(0.0, never)
    assert [members.has_more(running) for _ in range(2)] == [False, False]
    members.close()
    assert not [path for path in (tmp_path / "run").iterdir()], "the checks have ended"
    (tmp_path / FIRST).unlink()
    assert wait_for(lambda: members.has_more(running))
    assert not members.has_more(members.available(0.0, never)), "all of them train"


def test_a_host_that_adds_no_permitted_number_ends_nothing(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / SECOND).touch()
    members = members_of(config, 1, 3)
    running = members.available(0.0, never)
    assert running.workers == 3
    (tmp_path / SECOND).unlink()
    assert not members.has_more(running)
    assert wait_for(lambda: members._checks is not None and members._checks.are_over())
    assert not members.has_more(running)
    members.close()


def test_a_question_never_waits_for_a_silent_host(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "shell").write_text("#!/bin/sh\nexec sleep 60\n")
    members = members_of(config, 1, 2, 4)
    begun_secs = time.monotonic()
    for _ in range(3):
        assert not members.has_more(ClusterSize(1, 1, ("localhost: 0",)))
    members.close()
    assert time.monotonic() < begun_secs + 5.0


@pytest.mark.parametrize("launcher", ["auto", "hosts"])
def test_workers_on_this_machine_alone_need_no_other_host(config: RunConfig, launcher: str) -> None:
    alone = with_size(config, ClusterSize(1, 1, ("localhost: 0",)))
    alone = dataclasses.replace(alone, cluster=dataclasses.replace(alone.cluster, launcher=launcher))
    plan: Any = SimpleNamespace(worker_numbers=(1, 2), workers=1, replicas_per_worker=1, is_alone=True, comm="sharded")
    assert launcher_of(alone, plan).address == "127.0.0.1"
    assert OverHosts.changes_size
