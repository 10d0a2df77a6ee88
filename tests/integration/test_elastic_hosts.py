"""A run on hosts of which some are lost and come back: it goes on with those that are there."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import ssh_hosts
from tests.integration.runs import Run, launch
from tests.integration.test_elastic import ROOT, STEP_EXAMPLES, STEPS, arguments, expect_equal_to

TIMEOUT_SECS = 900
MISSING = ssh_hosts.missing()
ELASTIC = ("cluster.min_workers=1", "cluster.wait_secs=1", "train.max_restarts=3", "train.hang_timeout_secs=10")

pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.timeout(TIMEOUT_SECS)]


def on_hosts(folder: Path, *overrides: str) -> tuple[Run, dict[str, Any]]:
    """Returns a run on three hosts, two of which are lost and come back, and what its module has printed."""
    command = [sys.executable, "-m", "tests.integration.elastic_hosts", str(folder), str(folder / "fast")]
    done = subprocess.run([*command, *overrides], capture_output=True, text=True, timeout=TIMEOUT_SECS)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return Run(folder / "run", told["exit_status"], "", told["stderr"], 0.0).expect_success(), told


@pytest.mark.parametrize("comm", ["sharded", "hybrid"])
def test_a_host_without_power_and_one_without_a_link_do_not_end_the_run(tmp_path: Path, comm: str) -> None:
    own = [*arguments(tmp_path, "v1", STEP_EXAMPLES // 3), f"comm={comm}"]
    own.remove("tracking=off")
    resized, told = on_hosts(tmp_path, *own, *ELASTIC, "tracking=mlflow")
    whole = launch(*own, "tracking=off", "cluster.workers=3", cwd=tmp_path / "whole", python_path=ROOT).expect_success()

    assert told["left"] == []
    assert resized.plan["worker_numbers"] == [1, 2, 3]
    sizes = resized.summary["sizes"]
    assert [size["workers"] for size in sizes] == [3, 2, 3, 2, 3]
    assert [len(size["hosts"]) for size in sizes] == [3, 2, 3, 2, 3]
    assert resized.summary["restarts"] == 2, "the return of a host is no failure"
    assert resized.sidecar(STEPS)["examples"] == STEPS * STEP_EXAMPLES
    with sqlite3.connect(tmp_path / "cwd" / "mlflow.db") as store:
        values = store.execute("SELECT value FROM metrics WHERE key = 'cluster/workers' ORDER BY step").fetchall()
    assert values == [(2.0,), (3.0,), (2.0,), (3.0,)]
    expect_equal_to(whole, resized)
