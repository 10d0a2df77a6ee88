"""`scripts/bench startup`: measures the time between a command and its first step, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine, stage_log
from benchmarks.runs import Run
from benchmarks.tables import Rows
from benchmarks.timeline import Startup, measure, medians


def measure_starts(
    comms: Sequence[str], *, repeats: int, overrides: Sequence[str], folder: Path, tell: Callable[[str], None]
) -> dict[str, list[Startup]]:
    """Starts the default experiment with tracking `repeats` times under each mode. The modes alternate.

    Before these starts, one start that is not counted creates the database and fills the caches. Raises RunFailed.
    """
    found: dict[str, list[Startup]] = {comm: [] for comm in comms}
    _start(folder / "first", comms[0], overrides, folder)
    for number in range(repeats):
        for comm in comms:
            warning = machine.idle_warning(machine.look_around())
            if warning:
                tell(warning)
            one = _start(folder / f"{number}_{comm}", comm, overrides, folder)
            tell(f"start {number + 1}/{repeats} {comm}: {one.own_secs:.2f} s and {one.tensorflow_secs:.2f} s of import")
            found[comm].append(one)
    return found


def _start(run_dir: Path, comm: str, overrides: Sequence[str], cwd: Path) -> Startup:
    with Run(run_dir, [f"comm={comm}", "train.steps=3", *overrides], cwd=cwd) as run:
        run.wait()
    return measure(stage_log.read(run_dir), run.started)


def rows_of_totals(found: dict[str, list[Startup]]) -> Rows:
    """Returns one row per mode: the time until the first step, with and without TensorFlow's imports."""
    body = []
    for comm, starts in found.items():
        middle, own = medians(starts), sorted(start.own_secs for start in starts)
        body.append(
            (
                comm,
                f"{middle.first_step_secs:.2f}",
                f"{middle.tensorflow_secs:.2f}",
                f"{middle.own_secs:.2f}",
                f"{own[0]:.2f} – {own[-1]:.2f}",
            )
        )
    head = ("mode", "s to the first step", "TensorFlow's imports", "without them", "min – max")
    return Rows(head, tuple(body))


def rows_of_stages(starts: Sequence[Startup]) -> Rows:
    """Returns one row per stage and kind of process: the median duration, and the median end time since the command."""
    body = tuple(
        (row.process, row.stage, f"{row.secs:.2f}", f"{row.ends_secs:.2f}")
        for row in sorted(medians(starts).rows, key=lambda row: (row.process, row.ends_secs))
    )
    return Rows(("process", "stage", "takes s", "ends at s"), body, left=2)


def as_json(found: dict[str, list[Startup]]) -> dict[str, Any]:
    """Returns all raw numbers."""
    return {comm: [asdict(start) | {"own_secs": start.own_secs} for start in starts] for comm, starts in found.items()}
