"""Runs of cluster=kubernetes through an HTTP server that answers as an API server does, and pods that are namespaces of
this machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import network
from tests.integration.test_hosts import run_module
from tests.kubernetes_cluster.memory_limit import can_limit

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="pods need root, for their mounts"),
    pytest.mark.skipif(network.missing() is not None, reason=str(network.missing())),
]
STEPS = 1000
# Longer than each wait of a case, which would tell what has not come.
LIMIT_SECS = 840
WRITTEN = ["ckpt", "job.yaml", "logs", "plan.json"]


def outcome(case: str, folder: Path) -> dict[str, Any]:
    module, place = "tests.integration.pods_of_kubernetes", str(folder / "cluster")
    done = run_module(module, place, case, cwd=Path.cwd(), limit_secs=LIMIT_SECS)
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def steps_in(shown: str) -> list[int]:
    """The steps that the terminal has shown."""
    return [int(step) for step in re.findall(r"^step (\d+)/", shown, re.MULTILINE)]


def statuses(run: dict[str, Any], pod: str) -> Sequence[int]:
    """The exit statuses of all pods with a name without its suffix, in order."""
    return [status for name, status in run["statuses"].items() if name.rpartition("-")[0] == pod]


def expect_finished(run: dict[str, Any], steps: int) -> None:
    assert run["exit_status"] == 0, run["shown"]
    assert (run["summary"]["status"], run["summary"]["steps"]) == ("finished", steps)
    assert run["local"] == WRITTEN, "the checkpoints are in the pods' volume"


def test_an_indexed_job_trains_and_is_followed_to_its_end(tmp_path: Path) -> None:
    run = outcome("hybrid", tmp_path)
    expect_finished(run, 4)
    assert steps_in(run["shown"]) == [1, 2, 3, 4] and run["shown"].endswith("parallax_runner: Job mine: finished\n")
    assert statuses(run, "mine-0") == [0] and len(run["statuses"]) == 4
    if can_limit():
        assert set(run["memory_bytes"]) == set(run["statuses"])
    for peak_bytes, limit_bytes in run["memory_bytes"].values():
        assert limit_bytes / 10 < peak_bytes < limit_bytes, "what the plan predicts suffices"


def test_a_worker_of_a_jobset_that_is_killed_is_replaced(tmp_path: Path) -> None:
    run = outcome("sharded", tmp_path)
    expect_finished(run, STEPS)
    assert run["summary"]["restarts"] == 1
    assert sorted(run["statuses"].values()).count(137) == 1 and len(run["statuses"]) == 4
    assert "; restart 1 of 1 from step " in run["shown"]


def test_a_new_driver_s_pod_resumes_where_a_drained_one_has_saved(tmp_path: Path) -> None:
    run = outcome("lost_driver", tmp_path)
    expect_finished(run, STEPS)
    assert statuses(run, "mine-0") == [143, 0], "the workers' pods have stayed"
    assert len(run["statuses"]) == 4 and run["summary"]["restarts"] == 0
    assert sorted(steps_in(run["shown"])) == list(range(1, STEPS + 1)), "no step is done twice"


def test_a_warned_worker_costs_no_step(tmp_path: Path) -> None:
    run = outcome("left_worker", tmp_path)
    expect_finished(run, STEPS)
    assert statuses(run, "mine-2") == [143, 0] and statuses(run, "mine-0") == [0]
    assert run["summary"]["restarts"] == 1, "although train.max_restarts is 0"
    assert "worker" in run["shown"] and "it must end, because its machine is taken away; restart from" in run["shown"]
    assert sorted(steps_in(run["shown"])) == list(range(1, STEPS + 1)), "no step is done twice"


def test_a_run_that_fails_fails_its_job(tmp_path: Path) -> None:
    run = outcome("failed", tmp_path)
    assert run["exit_status"] == 1 and run["summary"]["status"] == "failed"
    assert statuses(run, "mine-0") == [1], "the driver's pod is not replaced"
    assert "parallax_runner: Job mine: failed: PodFailurePolicy: Container run for pod mine-0-" in run["shown"]


@pytest.mark.skipif(not can_limit(), reason="the memory of pods cannot be limited here")
def test_pods_with_too_little_memory_are_named(tmp_path: Path) -> None:
    run = outcome("short_of_memory", tmp_path)
    assert run["exit_status"] == 1 and run["summary"]["status"] == "failed"
    assert "has used more memory than its limit (OOMKilled): set a larger cluster.memory" in run["shown"]


def test_the_run_goes_on_with_the_pods_that_are_there(tmp_path: Path) -> None:
    run = outcome("elastic", tmp_path)
    expect_finished(run, STEPS)
    assert [size["workers"] for size in run["summary"]["sizes"]] == [2, 1, 2]
    assert run["summary"]["restarts"] == 1
    assert "with 1 worker instead of 2" in run["shown"] and "with 2 workers instead of 1" in run["shown"]
