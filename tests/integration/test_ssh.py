"""Runs on several hosts by ssh itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.integration import ssh_hosts

TIMEOUT_SECS = 400
MISSING = ssh_hosts.missing()

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture(scope="module")
def by_ssh(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ssh")
    command = [sys.executable, "-m", "tests.integration.ssh_hosts", str(folder), *lm, "comm=hybrid"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("comm", "servers"), [("hybrid", 2), ("sharded", 0)])
def test_quick_trains_on_both_hosts_by_the_command_of_the_page(by_ssh: dict[str, Any], comm: str, servers: int) -> None:
    run = by_ssh["quick"][comm]
    assert run["status"] == "finished", run["error"]
    assert (run["comm"], run["steps"], run["workers"], run["servers"]) == (comm, 20, 4, servers)
    assert run["loss_last"] < run["loss_first"]
    # Dense gradients alone are more than 10 kB a step: no host was left out.
    assert min(run["sent_bytes"]) > 20 * 10_000, run["sent_bytes"]


def test_nothing_stays_on_the_hosts_of_a_killed_driver(by_ssh: dict[str, Any]) -> None:
    for module in ("parallax_runner.worker", "parallax_runner.server", "prted"):
        assert sum(module in line for line in by_ssh["there"]) >= 2, by_ssh["there"]
    assert by_ssh["left_by_killed"] == []


def test_a_host_that_lets_nobody_in_is_named(by_ssh: dict[str, Any]) -> None:
    [said] = [line for line in by_ssh["stranger"].splitlines() if line.startswith("parallax_runner: ")]
    assert "host '10.9.0.11' in cluster.resource_info cannot be reached: " in said
    assert "Permission denied" in said and "to work without a prompt" in said
