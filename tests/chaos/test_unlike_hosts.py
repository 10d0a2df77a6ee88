"""Two hosts of which one has a wrong clock, other software, full disks, no sshd, or no connection for two minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import OUTCOME
from tests.chaos.unlike_hosts import FAKETIME
from tests.integration import ssh_hosts

MISSING = ssh_hosts.missing()
CASE_SECS = 900
# A cut host is lost after 0.8 times train.hang_timeout_secs.
LOST_SECS = (47, 75)

pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.timeout(CASE_SECS + 60),
]
needs_faketime = pytest.mark.skipif(
    not os.path.exists(FAKETIME), reason="libfaketime cannot be found (package faketime)"
)
Runs = Callable[..., dict[str, Any]]


@pytest.fixture
def case(lm: tuple[str, ...], tmp_path: Path, record_property: Callable[[str, object], None]) -> Runs:
    """Makes the runs of a case, after which no process may be left on the hosts."""

    def run(name: str, mode: str) -> dict[str, Any]:
        record_property(OUTCOME, ("hosts", f"{name}, comm={mode}"))
        command = [sys.executable, "-m", "tests.chaos.hosts_runs", str(tmp_path), name, *lm, f"comm={mode}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CASE_SECS, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)[name]
        assert found["left"] == []
        for one in (found, *(found.get(part, {}) for part in ("first", "again"))):
            assert "Traceback" not in one.get("stderr", ""), one["stderr"]
        return found

    return run


@needs_faketime
@pytest.mark.parametrize("name", ["clock_behind", "clock_ahead"])
def test_a_wrong_clock_changes_nothing(name: str, case: Runs) -> None:
    found = case(name, "hybrid")
    assert found["first"]["exit_status"] == 0, found["first"]["stderr"]
    assert found["again"]["exit_status"] == 0, found["again"]["stderr"]
    assert found["again"]["summary"]["first_step"] == 60


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("other_code", "on h2: it has source files of parallax_runner with the fingerprint"),
        ("other_keras", "on h2: it has Keras 3.0.1, but the driver has Keras"),
    ],
)
def test_other_software_is_named(name: str, told: str, case: Runs) -> None:
    found = case(name, "hybrid")
    assert found["exit_status"] == 1
    assert told in found["summary"]["error"] and "all hosts need the same installation" in found["summary"]["error"]


@pytest.mark.parametrize("mode", ["hybrid", "sharded"])
def test_a_run_without_restarts_ends_when_a_host_is_cut_off(mode: str, case: Runs) -> None:
    found = case("cut_120", mode)
    assert found["exit_status"] == 1
    assert LOST_SECS[0] < found["died_secs"] < LOST_SECS[1]
    assert "on h2: frozen: no sign of life" in found["summary"]["error"]


@pytest.mark.parametrize("mode", ["hybrid", "sharded"])
def test_a_run_with_restarts_waits_for_the_host(mode: str, case: Runs) -> None:
    found = case("cut_120_restarts", mode)
    assert found["exit_status"] == 143, found["stderr"]
    assert found["summary"]["restarts"] == 1 and found["went_on_secs"] is not None
    assert "The run waits for this host, for at most 15 min" in found["stderr"]


def test_a_patient_run_of_mpi_bridges_the_cut(case: Runs) -> None:
    found = case("cut_120_patient", "sharded")
    assert found["exit_status"] == 143, found["stderr"]
    assert found["summary"]["restarts"] == 0 and found["went_on_secs"] is not None


def test_a_restart_waits_for_an_sshd(case: Runs) -> None:
    found = case("sshd_killed", "hybrid")
    assert found["alive"], "a running worker needs no sshd"
    assert found["exit_status"] == 143, found["stderr"]
    assert found["summary"]["restarts"] == 1
