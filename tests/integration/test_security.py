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
from tests.integration.runs import launch, started

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


# All files that the run below writes, without its logs (tests/single/launch/test_logs.py).
WRITTEN = (
    *("config.yaml", "data.json", "graph_outline.json.gz", "plan.json", "plan_measured.json", "summary.json"),
    *("plots/loss.png", "plots/throughput.png", "graphs/worker_0.meta", "graphs/worker_1.meta"),
    *("profile/trace.json", "profile/shares.csv", "profile/step_time.png", "profile/heaviest_ops.csv"),
    *("profile/heaviest_ops.txt", "profile/worker_0/run_meta_2.pb", "profile/worker_1/run_meta_2.pb"),
    *("ckpt/checkpoint", "ckpt/best.json", "ckpt/model.ckpt-4.json"),
    *("ckpt/model.ckpt-4.index", "ckpt/model.ckpt-4.data-00000-of-00001"),
)
# The tracker's own files, which are not behind links here: it opens the journals with O_NOFOLLOW.
OF_TRACKER = {"journal.jsonl", "journal.lock", "journal.sent", "mlflow_run.json"}


def test_a_run_writes_through_no_link_in_its_folder(lm: tuple[str, ...], tmp_path: Path) -> None:
    """Another user could have placed links there to files of the run's user."""
    victims = {}
    for name in WRITTEN:
        link, victim = tmp_path / "out" / name, tmp_path / "victims" / name.replace("/", "_")
        for path in (link, victim):
            path.parent.mkdir(parents=True, exist_ok=True)
        victim.write_text("as it was\n")
        link.symlink_to(victim)
        victims[link] = victim
    profiled = ("profile=steps", "profile.steps=[2]", "export_graph_path=out/graphs")
    saved = (
        "ckpt.enabled=true",
        "ckpt.resume=never",
        "ckpt.save_steps=4",
        "train.steps=4",
        "tracking.log_checkpoints=none",
    )
    launch(*lm, "comm=hybrid", *profiled, *saved, cwd=tmp_path).expect_success()
    assert [link for link in victims if link.is_symlink()] == []
    assert {victim.read_text() for victim in victims.values()} == {"as it was\n"}
    files = {path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.suffix != ".log"}
    written = {path.relative_to(tmp_path / "out").as_posix() for path in files}
    assert written - {"ckpt/.lock"} == {*WRITTEN, *OF_TRACKER}  # a lock file stays empty


def test_a_link_in_the_place_of_a_log_is_refused_in_seconds(lm: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("as it was\n")
    (tmp_path / "out" / "logs").mkdir(parents=True)
    (tmp_path / "out" / "logs" / "worker_1.log").symlink_to(tmp_path / "victim")
    run = launch(*lm, "tracking=off", cwd=tmp_path)
    assert run.exit_status == 2
    assert "logs/worker_1.log: it is a symbolic link, through which nothing is written: remove it" in run.stderr
    assert not (tmp_path / "out" / "plan.json").exists()
    assert (tmp_path / "victim").read_text() == "as it was\n"
