"""What a person sees of a run on a terminal: a real one, as far as the program can tell."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.e2e import terminal
from tests.e2e.recorded_sweep import environment
from tests.e2e.terminal import Screen

RUN_SECS = 150
STEPS = 100_000_000
MOVES = 3  # two seconds each
CTRL_C = b"\x03"
BAR = re.compile(
    rf"^step +(?P<step>\d+)/{STEPS} .*?  *loss (?P<loss>\S+)  (?P<speed>[\d,]+) examples/s  (?P<left>\S+) left$", re.M
)
PRINTS_MEANWHILE = """
import sys, time
from parallax_runner.track.progress import ProgressDisplay, Standing
with ProgressDisplay(steps=300, log_every=10) as display:
    for step in range(1, 301):
        display.update(Standing(step, 300, loss=1 / step, steps_per_sec=50.0))
        if step == 40:
            print("to standard error", file=sys.stderr)
        if step == 60:
            print("to standard output")
        time.sleep(0.01)
print("the end", file=sys.stderr)
"""


def test_the_bar_moves_between_reports_and_is_gone_after_ctrl_c(tmp_path: Path) -> None:
    bars: list[re.Match[str]] = []
    pressed: list[int] = []

    def look(screen: Screen) -> bytes | None:
        found = list(BAR.finditer(screen.text))
        assert len(found) <= 1, f"a torn bar:\n{screen.text}"
        bars.extend(found)
        if pressed or len({bar["step"] for bar in bars}) < 1 + MOVES:
            return None
        pressed.append(int(bars[-1]["step"]))
        return CTRL_C

    # It reports its first step, and nothing more until it ends.
    arguments = ["model=simple", "comm=mpi", f"train.steps={STEPS}", f"train.log_every={STEPS}", "tracking=off"]
    status, screen = terminal.run(
        [sys.executable, "-m", "parallax_runner", *arguments, f"hydra.run.dir={tmp_path / 'run'}"],
        cwd=tmp_path,
        env=environment(),
        timeout_secs=RUN_SECS,
        on_screen=look,
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert pressed, f"the bar stood still:\n{screen.text}"
    assert (status, summary["status"]) == (130, "interrupted"), screen.text
    steps = [int(bar["step"]) for bar in bars]
    # Not that it begins at 1: it is drawn ten times a second, and a sign of life may come right after the first report.
    assert steps == sorted(steps)
    assert steps[-1] <= summary["steps"] < STEPS
    assert float(bars[0]["loss"]) == pytest.approx(summary["loss_first"], abs=1e-4)
    assert len({bar["speed"] for bar in bars}) > MOVES / 2
    # The plan above it and the lines below are whole.
    lines = [line for line in screen.text.splitlines() if line]
    assert lines[0].strip() == "plan: comm=mpi, 2 worker(s)"
    assert not any("step " in line and "━" in line for line in lines), screen.text
    assert f"{summary['steps']} steps are saved; to continue:" in lines


def test_what_is_printed_meanwhile_stays_above_the_bar(tmp_path: Path) -> None:
    torn: list[str] = []
    steps: set[str] = set()

    def look(screen: Screen) -> None:
        lines = [line for line in screen.text.splitlines() if line]
        bars = [number for number, line in enumerate(lines) if re.match(r"step +\d+/300 ", line)]
        steps.update(lines[number] for number in bars)
        if len(bars) > 1 or (bars and bars[0] != len(lines) - 1):
            torn.append(screen.text)

    status, screen = terminal.run(
        [sys.executable, "-c", PRINTS_MEANWHILE], cwd=tmp_path, env=environment(), timeout_secs=60, on_screen=look
    )
    assert status == 0, screen.text
    assert not torn, torn[0]
    assert len(steps) > 5
    assert [line for line in screen.text.splitlines() if line] == [
        "to standard error",
        "to standard output",
        "the end",
    ]
