"""Real runs that are killed during training: everything ends, the right process is blamed, and none is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.conftest import ENDLESS
from tests.integration.runs import Broken, Run, break_in, interrupt, started

END_SECS = 100
ORPHAN_SECS = 10
# On PYTHONPATH: rank 0 learns of the stop a second after the others, as on a slow network.
LATE_STOP = """
import os

if os.environ.get("OMPI_COMM_WORLD_RANK") == "0":
    import time

    from parallax_runner.launch.control import wire
    from parallax_runner.launch.control.client import ControlClient

    take = ControlClient._take

    def take_late(self, kind, fields):
        if kind == wire.STOP:
            time.sleep(1)
        take(self, kind, fields)

    ControlClient._take = take_late
"""


def expect_blame(run: Run, role: str, index: int) -> None:
    """Checks that the driver's message names this process and why it died, and ends with the process's last output."""
    assert re.search(rf"parallax_runner: {role} {index}\b.*SIGKILL", run.stderr), run.stderr
    lines = (run.run_dir / "logs" / f"{role}_{index}.log").read_text().splitlines()
    assert lines, "this test needs a process that wrote something"
    assert lines[-1] in run.stderr
    assert str(run.run_dir / "logs") in run.stderr


def test_a_killed_worker_ends_the_run(killed_worker: Broken) -> None:
    assert killed_worker.secs < END_SECS
    assert killed_worker.run.exit_status == 1
    assert killed_worker.left == []


def test_a_killed_worker_is_named_and_quoted(killed_worker: Broken) -> None:
    expect_blame(killed_worker.run, "worker", 1)


@pytest.fixture(scope="module")
def killed_server(lm: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Broken:
    cwd = tmp_path_factory.mktemp("killed_server")
    with started(*lm, *ENDLESS, "comm=hybrid", "tracking=off", cwd=cwd) as running:
        return break_in(running, lambda: running.member("server", 0).kill())


def test_a_killed_server_ends_the_run(killed_server: Broken) -> None:
    assert killed_server.secs < END_SECS
    assert killed_server.run.exit_status == 1
    assert killed_server.run.summary["status"] == "failed"
    assert killed_server.left == []


def test_a_killed_server_is_named_and_quoted(killed_server: Broken) -> None:
    assert "server 0" in killed_server.run.summary["error"]
    expect_blame(killed_server.run, "server", 0)


def test_ctrl_c_ends_the_run_in_order(interrupted: Broken) -> None:
    assert interrupted.secs < END_SECS
    assert interrupted.run.exit_status == 130
    assert interrupted.left == []
    assert "Traceback" not in interrupted.run.stderr


def test_ctrl_c_saves_what_was_trained(interrupted: Broken) -> None:
    summary = interrupted.run.summary
    assert summary["ckpt_path"] == str(interrupted.run.ckpt_dir / f"model.ckpt-{summary['steps']}")
    assert Path(f"{summary['ckpt_path']}.index").is_file()


def test_ctrl_c_saves_though_the_chief_hears_of_it_last(tmp_path: Path) -> None:
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(LATE_STOP)
    with started(
        "model=simple", *ENDLESS, "comm=mpi", "tracking=off", cwd=tmp_path, python_path=tmp_path / "shim"
    ) as running:
        broken = break_in(running, lambda: interrupt(running))
    assert broken.secs < END_SECS
    assert broken.run.exit_status == 130
    assert broken.left == []
    # The others have left after some step; the chief's state at that moment must not be lost.
    assert list(broken.run.ckpt_dir.glob("model.ckpt-*.index"))


def test_nobody_outlives_a_killed_driver(lm: tuple[str, ...], tmp_path: Path) -> None:
    with started(*lm, *ENDLESS, "comm=hybrid", "tracking=off", cwd=tmp_path) as running:
        running.wait_for_step()
        assert {running.member("worker", 0), running.member("worker", 1), running.member("server", 0)}
        running.process.kill()
        running.process.wait()
        print(f"gone after {running.seconds_until_none_left(ORPHAN_SECS):.2f} s")
