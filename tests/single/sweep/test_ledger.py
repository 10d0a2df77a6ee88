"""The ledger: what an account adds up to, torn lines, dead processes, several writers at once."""

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from parallax_runner.sweep import ledger as ledgers
from parallax_runner.sweep.events import Event, event_in
from parallax_runner.sweep.ledger import SUBMITTED, Job, Ledger, account

JOB = Job("comm-mpi", "comm=mpi", ("comm=mpi", "train.steps=5"), "/runs/comm-mpi")
OTHER = Job("comm-ps", "comm=ps", ("comm=ps", "train.steps=5"), "/runs/comm-ps")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path)
    ledger.append("sweep_started")
    return ledger


def lines(ledger: Ledger) -> list[dict]:
    return [json.loads(line) for line in ledger.path.read_text().splitlines()]


def event(fields: dict) -> Event:
    found = event_in(json.dumps(fields).encode())
    assert found is not None
    return found


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_job_is_claimed_once_and_skipped_when_finished(ledger: Ledger) -> None:
    assert ledger.claim(JOB, fail_fast=False) is None
    assert ledger.read().standings[JOB.name].status == "running"
    ledger.append("finished", JOB, objective=1.5, objective_name="loss")
    standing = ledger.claim(JOB, fail_fast=False)
    assert standing is not None
    assert (standing.status, standing.objective, standing.job) == ("finished", 1.5, JOB)
    assert [line["event"] for line in lines(ledger)] == ["sweep_started", "started", "finished", "skipped"]
    assert ledger.read().standings[JOB.name].objective == 1.5, "a second restart still knows it"
    assert ledger.read().objectives == (1.5,), "skipping is no second result"


@pytest.mark.parametrize("event", ["failed", "interrupted"])
def test_unfinished_jobs_are_claimed_again_in_the_next_start(ledger: Ledger, event: str) -> None:
    ledger.claim(JOB, fail_fast=True)
    ledger.append(event, JOB, exit_status=1)
    ledger.append("sweep_started")
    assert ledger.claim(JOB, fail_fast=True) is None


def test_other_overrides_are_another_job_in_the_same_folder(ledger: Ledger) -> None:
    ledger.claim(JOB, fail_fast=False)
    ledger.append("finished", JOB, objective=1.5, objective_name="loss")
    longer = Job(JOB.name, JOB.title, ("comm=mpi", "train.steps=9"), JOB.run_dir)
    assert ledger.claim(longer, fail_fast=False) is None


def test_order_of_overrides_does_not_matter(ledger: Ledger) -> None:
    ledger.claim(JOB, fail_fast=False)
    ledger.append("finished", JOB, objective=1.5, objective_name="loss")
    turned = Job(JOB.name, JOB.title, JOB.overrides[::-1], JOB.run_dir)
    assert ledger.claim(turned, fail_fast=False) is not None


def test_a_stop_keeps_jobs_from_starting(ledger: Ledger) -> None:
    ledger.append("stop", exit_status=143)
    standing = ledger.claim(JOB, fail_fast=False)
    assert standing is not None
    assert (standing.status, standing.exit_status) == ("interrupted", 143)
    assert JOB.name not in ledger.read().standings
    ledger.append("sweep_started")
    assert ledger.claim(JOB, fail_fast=False) is None, "the next start knows nothing of it"


def test_an_interrupted_job_stops_the_sweep(ledger: Ledger) -> None:
    ledger.claim(JOB, fail_fast=False)
    ledger.append("interrupted", JOB, exit_status=130)
    standing = ledger.claim(OTHER, fail_fast=False)
    assert standing is not None
    assert standing.exit_status == 130


def test_fail_fast(ledger: Ledger) -> None:
    ledger.claim(JOB, fail_fast=True)
    ledger.append("failed", JOB, exit_status=2)
    assert ledger.claim(OTHER, fail_fast=False) is None
    ledger.append("finished", OTHER)
    standing = ledger.claim(Job("third", "third", (), "/runs/third"), fail_fast=True)
    assert standing is not None
    assert (standing.status, standing.exit_status) == ("failed", 2)
    assert ledger.read().failed_status == 2


def test_a_job_of_a_dead_process_is_interrupted(ledger: Ledger) -> None:
    ledger.claim(JOB, fail_fast=False)
    started = lines(ledger)[-1] | {"pid": dead_pid()}
    assert account([event(started)]).standings[JOB.name].status == "interrupted"
    recycled = lines(ledger)[-1] | {"start_ticks": 1}
    assert account([event(recycled)]).standings[JOB.name].status == "interrupted", "another process has its number now"
    assert ledger.read().running() and not ledger.read().running(besides_pid=os.getpid())


def test_torn_line_is_passed_over(ledger: Ledger) -> None:
    ledger.claim(JOB, fail_fast=False)
    with open(ledger.path, "a") as file:
        file.write('{"event": "finished", "job": "comm-m')
    assert ledger.read().standings[JOB.name].status == "running"
    ledger.append("finished", JOB, objective=2.0, objective_name="loss")
    assert ledger.read().standings[JOB.name].objective == 2.0


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_objectives_survive(ledger: Ledger, value: float) -> None:
    ledger.append("finished", JOB, objective=value, objective_name="loss")
    assert ledger.read().standings[JOB.name].objective == value


def test_nan_survives(ledger: Ledger) -> None:
    ledger.append("finished", JOB, objective=math.nan, objective_name="loss")
    objective = ledger.read().standings[JOB.name].objective
    assert objective is not None and math.isnan(objective)


WRITER = """
import sys
from pathlib import Path
from parallax_runner.sweep.ledger import Job, Ledger
ledger, writer = Ledger(Path(sys.argv[1])), sys.argv[2]
for number in range(40):
    job = Job(f"{writer}-{number}", "x" * 3000, ("a=1",) * 50, "/runs")
    assert ledger.claim(job, fail_fast=False) is None
    ledger.append("finished", job, objective=float(number), objective_name="loss")
shared = ledger.claim(Job("shared", "shared", (), "/runs"), fail_fast=False)
if shared is None:
    ledger.append("finished", Job("shared", "shared", (), "/runs"), objective=7.0, objective_name="loss")
"""


def test_writers_at_the_same_time_lose_nothing(ledger: Ledger) -> None:
    command = [sys.executable, "-c", WRITER, str(ledger.path.parent)]
    processes = [subprocess.Popen([*command, str(writer)]) for writer in range(4)]
    assert [process.wait(120) for process in processes] == [0] * 4
    assert len(lines(ledger)) == 1 + 4 * 40 * 2 + 2 + 3, "no line is torn, and the shared job ran once"
    assert [one.status for one in ledger.read().standings.values()] == ["finished"] * (4 * 40 + 1)


def test_waits_for_the_same_job_elsewhere(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials with the same values: the second takes the first one's objective."""
    monkeypatch.setattr(ledgers, "POLL_SECS", 0.01)
    assert ledger.claim(JOB, fail_fast=False) is None
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(ledger.claim(JOB, fail_fast=False)), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert not found
    ledger.append("finished", JOB, objective=3.0, objective_name="loss")
    waiting.join(30)
    assert [one.objective for one in found] == [3.0]


@pytest.fixture
def without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No squeue can be asked."""
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_job_that_slurm_may_still_have_counts_as_running(ledger: Ledger, without_slurm: None) -> None:
    ledger.append(SUBMITTED, JOB, slurm_job="12_0")
    standing = ledger.read().standings[JOB.name]
    assert (standing.status, standing.slurm_job) == ("running", "12_0")
    assert ledger.read().running(besides_pid=os.getpid()), "whose process wrote that says nothing"
    ledger.append("finished", JOB, objective=1.5, objective_name="loss", slurm_job="12_0")
    assert ledger.read().standings[JOB.name].status == "finished"


def test_a_job_claims_itself_in_slurm_also_when_it_is_started_again(
    ledger: Ledger, without_slurm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.append(SUBMITTED, JOB, slurm_job="12_0")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    assert ledger.claim(JOB, fail_fast=False) is None
    assert lines(ledger)[-1]["slurm_job"] == "12_0"
    dead = lines(ledger)[-1] | {"pid": dead_pid()}
    assert account([event(dead)]).standings[JOB.name].status == "interrupted", "of the same Slurm job: its last start"


def test_a_job_that_slurm_has_ended_stops_no_other(ledger: Ledger) -> None:
    ledger.append("interrupted", JOB, exit_status=143, slurm_job="12_0")
    assert ledger.read().stop_status == 0
    assert ledger.claim(OTHER, fail_fast=True) is None


def test_a_finished_job_is_not_submitted_again(ledger: Ledger) -> None:
    assert ledger.skip_finished(JOB) is None
    ledger.append("finished", JOB, objective=1.5, objective_name="loss")
    standing = ledger.skip_finished(JOB)
    assert standing is not None and standing.objective == 1.5
    assert lines(ledger)[-1]["event"] == "skipped"
