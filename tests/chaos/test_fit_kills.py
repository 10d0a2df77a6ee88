"""`fit` is killed in each phase, the driver or a worker: it ends, leaves nothing, and the next start goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from parallax_runner.checkpoints.checkpoint_files import PARTIAL, damage, list_checkpoints
from tests import forked
from tests.chaos.conftest import OUTCOME
from tests.chaos.fit_kills import FitKill, fit_kills
from tests.integration.runs import LAUNCH_SECS

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "train_in_phases.py"
END_SECS = 120
ORPHAN_SECS = 30
# The lines that the driver writes when a phase begins.
LINES = {
    "start": "starting 2 workers",
    "join": "rewriting the graph",
    "initialize": "setting initial values",
    "train": "step 2/18",
    "validate": "step 6/18",
}
# The training has ended here, so a signal meets the script itself, as soon as the model has its weights.
OF_SCRIPT = ("export", "end")


class Fit:
    """A running script. `cwd` identifies its processes."""

    def __init__(self, cwd: Path, comm: str, *overrides: str) -> None:
        self.cwd = cwd
        self._said = cwd / "stderr.txt"
        asked = json.dumps({"comm": comm, "overrides": overrides})
        with open(cwd / "stdout.txt", "w") as stdout, open(self._said, "w") as stderr:
            self.process = subprocess.Popen(
                [forked.STUB, SCRIPT, asked],
                cwd=cwd,
                env={**os.environ, **forked.environment(), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    @property
    def said(self) -> str:
        """What the driver has written to its terminal."""
        return self._said.read_text()

    def others(self) -> list[psutil.Process]:
        """Returns the living processes of the run, without the driver."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or ())
            if str(self.cwd / "run") in line and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def worker(self, rank: int) -> psutil.Process | None:
        """Returns a worker, or None if it does not exist."""
        for process in self.others():
            try:
                is_worker = "parallax_runner.worker" in process.cmdline() and "mpirun" not in process.cmdline()[0]
                if is_worker and process.environ().get("OMPI_COMM_WORLD_RANK") == str(rank):
                    return process
            except psutil.Error:  # it may end while it is looked at
                continue
        return None

    def is_in(self, phase: str) -> bool:
        """Returns whether the run has reached a phase."""
        run = self.cwd / "run"
        if phase in ("capture", "callback", "end"):
            return (self.cwd / f"in-{phase}").exists()
        if phase == "ship":
            return (run / "shipment").exists()
        if phase == "save":
            return any(run.glob(f"ckpt/{PARTIAL}*"))
        if phase == "export":
            return "validation after step 18" in self.said and not self.others()
        if phase == "start" and self.worker(1) is None:
            return False
        return LINES[phase] in self.said

    def wait_for(self, phase: str) -> None:
        """Waits until the run has reached a phase."""
        deadline = time.monotonic() + LAUNCH_SECS
        while not self.is_in(phase):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.002)

    def end(self) -> int:
        """Waits for the end of the driver and of all other processes. Returns the exit status."""
        status = self.process.wait(END_SECS)
        deadline = time.monotonic() + ORPHAN_SECS
        while self.others():
            assert time.monotonic() < deadline, self.others()
            time.sleep(0.1)
        return status

    def kill(self) -> None:
        """Ends what is left."""
        for process in self.others():
            process.kill()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Fit]]:
    """Starts the script in a folder."""
    started: list[Fit] = []

    def begin(cwd: Path, comm: str, *overrides: str) -> Fit:
        cwd.mkdir(exist_ok=True)
        started.append(Fit(cwd, comm, *overrides))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None or one.others():
            one.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run leaves that nobody disturbs."""
    cwd = tmp_path_factory.mktemp("undisturbed")
    fit = Fit(cwd, "sharded", "tracking=off")
    assert fit.process.wait(LAUNCH_SECS) == 0, fit.said
    return left_in(cwd)


def left_in(cwd: Path) -> dict[str, Any]:
    with np.load(cwd / "left.npz") as left:
        return {name: left[name] for name in left.files}


@pytest.mark.parametrize("kill", fit_kills(), ids=str)
def test_a_kill_of_fit(
    kill: FitKill,
    start: Callable[..., Fit],
    undisturbed: dict[str, Any],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    record_property(OUTCOME, (f"fit: {kill.signal} to {kill.target}", kill.phase))
    tracking = [] if kill.phase == "export" else ["tracking=off"]
    overrides = [*tracking, f"train.max_restarts={kill.restarts}"]
    cwd = tmp_path / "script"
    fit = start(cwd, kill.mode, *overrides)
    fit.wait_for(kill.phase)
    victim = fit.process if kill.target == "driver" else fit.worker(int(kill.target[-1]))
    assert victim is not None, fit.said
    victim.send_signal(signal.Signals[kill.signal])
    begin = time.monotonic()
    status = fit.end()
    print(f"{kill}: exit {status} after {time.monotonic() - begin:.1f} s")
    expect_end(kill, fit, status)
    for prefix in list_checkpoints(cwd / "run" / "ckpt"):
        assert damage(prefix) is None
    if status != 0:
        again = start(cwd, kill.mode, *overrides)
        assert again.end() == 0, again.said
    assert not (cwd / "run" / "shipment").exists()
    for name, value in undisturbed.items():
        np.testing.assert_allclose(left_in(cwd)[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def expect_end(kill: FitKill, fit: Fit, status: int) -> None:
    number = signal.Signals[kill.signal]
    if kill.target == "driver" and kill.signal == "SIGKILL":
        assert status == -number
        return
    assert not (fit.cwd / "run" / "shipment").exists()
    if kill.target == "driver" and kill.phase in OF_SCRIPT:
        assert status in (-number, 128 + number), fit.said
        return
    assert "Traceback" not in fit.said, fit.said
    if kill.target == "driver":
        assert status == 128 + number, fit.said
    elif kill.restarts:
        assert status == 0 and "restart 1 of 2" in fit.said, fit.said
    else:
        assert status == 1, fit.said
        assert f"{kill.target}" in fit.said and "(SIGKILL)" in fit.said, fit.said
