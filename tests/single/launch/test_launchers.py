"""What each launcher starts, and which one a configuration gets."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from parallax_runner.config.compose import Composer
from parallax_runner.config.schema import RoutesConfig
from parallax_runner.driver.check import validated
from parallax_runner.launch.hosts import Hosts, Place
from parallax_runner.launch.job import Job
from parallax_runner.launch.launchers import hosts
from parallax_runner.launch.launchers.choose import launcher_of
from parallax_runner.launch.launchers.direct import Direct
from parallax_runner.launch.launchers.hosts import OverHosts
from parallax_runner.launch.launchers.local import Local
from parallax_runner.launch.preloaded import LIBRARY
from tests.single.planning.test_planner import DENSE
from tests.single.plans import plan_of

JOB = Job(run_dir=Path("r"), workers=2, servers=2, env={"PARALLAX_CONTROL_SECRET": "secret"})
HOSTS = Hosts((Place("localhost", 1, True), Place("other", 1, False)), "ssh -p 2222", "10.0.0.1", None)


def test_direct_starts_each_worker_and_tells_it_its_rank() -> None:
    first, second = Direct().workers(JOB, ExitStack())
    assert first.argv == second.argv == [sys.executable, "-m", "parallax_runner.worker", "r"]
    assert (first.env["PARALLAX_RANK"], second.env["PARALLAX_RANK"]) == ("0", "1")
    assert first.env["PARALLAX_CONTROL_SECRET"] == "secret" and "LD_PRELOAD" not in first.env


@pytest.mark.parametrize(
    ("fields", "is_alone"),
    [
        ({"comm": "local", "workers": 1, "servers": 0}, True),
        ({"comm": "own", "preset": RoutesConfig("local", "local"), "workers": 1, "servers": 0}, True),
        ({"comm": "mpi", "workers": 1, "servers": 0}, False),
        ({"comm": "ps", "workers": 1, "servers": 1}, False),
        ({"comm": "mpi", "workers": 2, "servers": 0}, False),
    ],
)
def test_a_process_that_sends_nothing_is_started_directly(fields: dict[str, Any], is_alone: bool) -> None:
    config = validated(Composer().job(["model=simple", "data=linear"]))
    assert isinstance(launcher_of(config, plan_of([DENSE], **fields)), Direct if is_alone else Local)


def test_servers_of_this_machine_load_what_the_user_preloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/opt/of_this_machine.so")
    servers = Local().servers(JOB)
    assert [server.argv[2:] for server in servers] == [["parallax_runner.server", "r", str(i)] for i in range(2)]
    assert servers[0].env["LD_PRELOAD"] == f"/opt/of_this_machine.so:{LIBRARY}"
    assert servers[0].env["PARALLAX_CONTROL_SECRET"] == "secret"


def test_a_server_of_another_host_gets_its_environment_on_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/opt/of_this_machine.so")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    here, there = OverHosts(HOSTS).servers(JOB)
    assert here.argv[:3] == [sys.executable, "-m", "parallax_runner.server"] and here.stdin == b""
    assert there.argv[:4] == ["ssh", "-p", "2222", "other"] and "secret" not in " ".join(there.argv)
    told = json.loads(there.stdin)
    assert told["argv"] == [sys.executable, "-m", "parallax_runner.server", "r", "1"]
    assert told["env"] == {
        **{name: value for name, value in told["env"].items() if name not in ("LD_PRELOAD", "PYTHONPATH")},
        **{"LD_PRELOAD": str(LIBRARY), "PYTHONPATH": "/mine", "PARALLAX_CONTROL_SECRET": "secret"},
    }


def test_folders_of_mpirun_go_when_the_attempt_is_over() -> None:
    with ExitStack() as cleanup:
        (command,) = Local().workers(JOB, cleanup)
        folder = Path(command.env["PRTE_MCA_prte_local_tmpdir_base"])
        assert folder.is_dir()
    assert not folder.exists()


def test_ranks_on_other_hosts_have_no_folder_for_shared_memory() -> None:
    with ExitStack() as cleanup:
        (here,), (there,) = Local().workers(JOB, cleanup), OverHosts(HOSTS).workers(JOB, cleanup)
    assert "OMPI_MCA_btl_sm_backing_directory" in here.env
    assert "OMPI_MCA_btl_sm_backing_directory" not in there.env
    assert there.argv[there.argv.index("--host") + 1] == "localhost:1,other:1"


def test_where_children_reach_the_driver() -> None:
    assert (Local().address, OverHosts(HOSTS).address) == ("127.0.0.1", "10.0.0.1")


NAMES = {"here": "me", "first": "a", "10.0.0.7": "b", "second": "a"}
FOUR = (Place("here", 2, True), Place("first", 1, False), Place("10.0.0.7", 1, False), Place("second", 1, False))


@pytest.mark.parametrize(
    ("role", "index", "host", "told"),
    [
        ("worker", 0, "me", None),
        ("worker", 3, "b", None),
        (
            "worker",
            3,
            "me",
            "it is running on me, but the plan assigns it to 10.0.0.7, whose hostname is b: the launcher",
        ),
        ("worker", 1, "b", "it is running on b, but the plan assigns it to here, whose hostname is me"),
        ("server", 1, "me", "it is running on me, but the plan assigns it to first, whose hostname is a"),
        ("server", 5, "a", None),
        # Two hosts with the same name, and a name that no host has returned, as in a container.
        ("worker", 4, "a", None),
        ("worker", 2, "1f2e3d", None),
    ],
)
def test_a_process_on_another_host_than_planned(
    role: str, index: int, host: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "me")
    monkeypatch.setattr(hosts, "check_hosts", lambda *_: {name: own for name, own in NAMES.items() if name != "here"})
    launcher = OverHosts(Hosts(FOUR, "ssh", "10.0.0.1", None))
    assert launcher.misplaced(role, index, host) is None, "before the hosts have returned their names"
    launcher.check([tmp_path], lambda: False)
    found = launcher.misplaced(role, index, host)
    assert found is None if told is None else told in str(found)


def test_the_user_s_own_order_of_ranks_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "check_hosts", lambda *_: NAMES)
    by_option, by_parameter = ("--rank-by", "node"), ()
    for options in (by_option, by_parameter):
        launcher = OverHosts(Hosts(FOUR, "ssh", "10.0.0.1", None), options)
        launcher.check([tmp_path], lambda: False)
        monkeypatch.setenv("PRTE_MCA_rmaps_default_ranking_policy", "node")
        assert launcher.misplaced("worker", 3, "a") is None
        assert launcher.misplaced("server", 1, "b") is not None
    monkeypatch.delenv("PRTE_MCA_rmaps_default_ranking_policy")
    assert launcher.misplaced("worker", 3, "a") is not None
