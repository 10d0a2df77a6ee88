"""Real runs, real signals: whoever is hit and whenever, all processes end, the message is right, no state is lost."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from parallax_runner.checkpoints.checkpoint_files import PARTIAL, damage, list_checkpoints, step_of
from parallax_runner.checkpoints.start import find_start
from tests.chaos.conftest import OUTCOME
from tests.chaos.kills import Kill, horovod_kills, kills
from tests.integration.runs import LAUNCH_SECS, Run, Running, launch, started

HANG_TIMEOUT_SECS = 8
# The longest patience of a driver is that for workers that do not stop (30 s); the rest is a busy machine's.
END_SECS = 75
ORPHAN_SECS = 20
MORE_STEPS = 3


def wait_for(condition: Callable[[], object], running: Running) -> None:
    deadline = time.monotonic() + LAUNCH_SECS
    while not condition():
        assert running.process.poll() is None, "the run ended before its kill"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def find(running: Running, role: str) -> psutil.Process | None:
    """The process of a role, None if it does not exist yet."""
    if role == "driver":
        return psutil.Process(running.process.pid)
    if role == "mpirun":
        return next((one for one in running.left() if _program(one) in ("mpirun", "prterun")), None)
    name, _, index = role.partition(" ")
    with contextlib.suppress(AssertionError):
        return running.member(name, int(index))
    return None


def _program(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error, IndexError):
        return os.path.basename(process.cmdline()[0])
    return ""


def reach(running: Running, kill: Kill) -> None:
    """Waits for the phase of a kill."""
    wait_for(lambda: find(running, "worker 0" if kill.role == "driver" else kill.role), running)
    if kill.phase == "start":
        return
    running.wait_for_step()
    if kill.phase == "save":
        running.wait_for_checkpoints(1)
        wait_for(lambda: any(running.run_dir.glob(f"ckpt/{PARTIAL}*")), running)
    if kill.phase == "stop":
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.6)  # a second signal within half a second counts as the same press


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    """The folder for temporary files of a run, in which nothing must stay."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.mark.parametrize("kill", [*kills(), *horovod_kills()], ids=str)
def test_a_kill(
    kill: Kill,
    lm: tuple[str, ...],
    tmp_path: Path,
    temporary: Path,
    record_property: Callable[[str, object], None],
) -> None:
    record_property(OUTCOME, (f"{kill.signal} to {kill.role}", kill.phase))
    overrides = [*lm, f"comm={kill.mode}", f"comm.backend={kill.backend}", "tracking=off"]
    overrides += [f"train.hang_timeout_secs={HANG_TIMEOUT_SECS}"]
    overrides += ["train.log_every=20", *(["ckpt.save_steps=2", "ckpt.keep=3"] if kill.phase == "save" else [])]
    with started(*overrides, "train.steps=1000000", cwd=tmp_path) as running:
        reach(running, kill)
        victim = find(running, kill.role)
        was_running = running.process.poll() is None
        start = time.monotonic()
        if victim is not None:  # in the phase «stop» it may have ended already
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.Signals[kill.signal])
        run = running.wait(END_SECS)
        secs = time.monotonic() - start
        running.seconds_until_none_left(ORPHAN_SECS)
    print(f"{kill}: exit {run.exit_status} after {secs:.1f} s")
    expect_answer(kill, run, was_running=was_running)
    expect_sound_checkpoints(kill, run)
    if kill.phase == "save" and kill.signal == "SIGKILL":
        expect_to_go_on(run, overrides, tmp_path)
        assert list(temporary.iterdir()) == []


def expect_answer(kill: Kill, run: Run, *, was_running: bool) -> None:
    """Status, message and summary tell what happened."""
    number = signal.Signals[kill.signal]
    if kill.role == "driver" and kill.signal == "SIGKILL":
        # After the first signal of the phase «stop», a quick run may have ended in order before the second came.
        assert was_running or kill.phase == "stop"
        assert run.exit_status == (-number if was_running else 128 + signal.SIGTERM)
        return
    assert "Traceback" not in run.stderr, run.stderr
    if kill.phase == "stop":
        # Interrupted by the first signal, failed by the second, or ended by the second after it has said that it was
        # interrupted by the first: never a success.
        assert run.exit_status in (1, 128 + signal.SIGTERM, -number), run.stderr
        assert run.summary["status"] in ("interrupted", "failed")
    elif kill.role == "driver":
        assert run.exit_status == 128 + number, run.stderr
        assert run.summary["status"] == "interrupted"
        if kill.phase != "start":
            assert step_of(Path(run.summary["ckpt_path"])) == run.summary["steps"]
    else:
        assert run.exit_status == 1, run.stderr
        assert run.summary["status"] == "failed"
        expect_named(kill, run)


def expect_named(kill: Kill, run: Run) -> None:
    """The message names who was hit, and how."""
    error = run.summary["error"]
    assert error in run.stderr
    assert re.match(rf"{kill.role}\b", error), error
    if kill.signal in ("SIGKILL", "SIGSEGV"):
        assert f"({kill.signal})" in error
    if kill.signal == "SIGSTOP":
        assert "stopped" in error


def expect_sound_checkpoints(kill: Kill, run: Run) -> None:
    """Each checkpoint is what was written, and a resumed run begins with the newest."""
    if not run.ckpt_dir.is_dir():
        assert kill.phase == "start"
        return
    left = list_checkpoints(run.ckpt_dir)
    if kill.phase == "save":
        assert left
    start = find_start("auto", run.ckpt_dir).prefix  # moves a checkpoint into place that was written in full
    checkpoints = list_checkpoints(run.ckpt_dir)
    assert checkpoints[: len(left)] == left
    assert [damage(prefix) for prefix in checkpoints] == [None] * len(checkpoints)
    assert start == (checkpoints[-1] if checkpoints else None)


def expect_to_go_on(run: Run, overrides: list[str], cwd: Path) -> None:
    """The same command ends well, from the step that was saved last."""
    first_step = step_of(list_checkpoints(run.ckpt_dir)[-1])
    resumed = launch(*overrides, f"train.steps={first_step + MORE_STEPS}", cwd=cwd).expect_success()
    assert (resumed.summary["first_step"], resumed.summary["steps"]) == (first_step, first_step + MORE_STEPS)
