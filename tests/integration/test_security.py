"""Which ports of a run can be reached, and from where."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from benchmarks.hosts import network
from tests.integration.command_lines import control_secrets, showing
from tests.integration.conftest import ENDLESS
from tests.integration.listening import listening, with_descendants
from tests.integration.runs import started

MISSING = network.missing()
TIMEOUT_SECS = 400


def test_in_every_mode_a_run_on_one_machine_listens_to_that_machine_alone(lm: tuple[str, ...], tmp_path: Path) -> None:
    modes = ("mpi", "ps", "hybrid", "sharded")
    with ExitStack() as stack:
        runs = {}
        for mode in modes:
            arguments = (*lm, *ENDLESS, f"comm={mode}", "tracking=off")
            runs[mode] = stack.enter_context(started(*arguments, cwd=tmp_path / mode))
        for mode, running in runs.items():
            running.wait_for_step()
            processes = with_descendants(psutil.Process(running.process.pid))
            sockets = listening(processes)
            print(mode, sockets)
            assert [one for one in sockets if not ipaddress.ip_address(one.address).is_loopback] == []
            # At least the driver and mpirun, and TensorFlow's server in each process that has one; fewer mean a faulty
            # search.
            assert len(sockets) >= (5 if mode in ("ps", "hybrid") else 2)
            secrets = control_secrets(processes)
            assert len(secrets) == 1 and list(showing(secrets)) == [] != list(showing({str(running.run_dir)}))
            running.kill()


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_a_neighbour_gets_nothing_from_a_run_on_one_machine(lm: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.neighbour", str(tmp_path), *lm, *ENDLESS, "comm=ps"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECS)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # On the run's own host every port answers, and a server gives away a file, so the neighbour's attempts are valid.
    assert len(told["answering_here"]) == told["ports"] >= 5
    assert told["session_here"] == Path("/etc/hostname").read_text().strip()
    assert told["answering_there"] == []
    assert told["session_there"] in ("DeadlineExceededError", "UnavailableError")
