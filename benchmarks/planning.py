"""`scripts/bench plan`: measures the CPU time of `action=plan` for models with more and more tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine, stage_log
from benchmarks.runs import RunFailed
from benchmarks.tables import Rows

ROWS_OF_TABLE = 1000
CONF = Path(__file__).parent / "conf"
# How each kind of model is chosen.
MODELS: Mapping[str, tuple[str, ...]] = {
    "dlrm": ("experiment=dlrm_keras",),
    "norm": ("experiment=many_tables",),
    "step": ("experiment=many_tables", "model=many_tables_step"),
}
STAGES = ("graph", "plan", "losses", "show the plan")


@dataclass(frozen=True)
class Planning:
    """The cost of one plan: the CPU time of the process, and the duration of its stages."""

    model: str
    tables: int
    cpu_secs: float
    stage_secs: dict[str, float]


def measure(
    models: Sequence[str],
    tables: Sequence[int],
    *,
    overrides: Sequence[str],
    folder: Path,
    profile: bool,
    tell: Callable[[str], None],
) -> list[Planning]:
    """Makes one plan for each kind of model and each number of tables. Raises RunFailed.

    With `profile`, each process runs under cProfile and writes `plan.prof` in the folder of its run.
    """
    found = []
    for model in models:
        for count in tables:
            warning = machine.idle_warning(machine.look_around())
            if warning:
                tell(warning)
            found.append(_plan(model, count, overrides, folder / f"{model}_{count}", profile=profile))
            tell(f"{model}, {count} tables: {found[-1].cpu_secs:.1f} s of CPU time")
    return found


def _plan(model: str, tables: int, overrides: Sequence[str], run_dir: Path, *, profile: bool) -> Planning:
    run_dir.mkdir(parents=True)
    cardinalities = ",".join([str(ROWS_OF_TABLE)] * tables)
    argv = [
        sys.executable,
        *(["-m", "cProfile", "-o", str(run_dir / "plan.prof")] if profile else []),
        *("-m", "parallax_runner", "action=plan", "tracking=off", f"run_dir={run_dir}"),
        *(f"hydra.searchpath=[{CONF}]", *MODELS[model], f"data.cardinalities=[{cardinalities}]"),
        *overrides,
    ]
    with open(run_dir / "terminal.log", "wb") as terminal:
        process = subprocess.Popen(argv, cwd=machine.ROOT, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        said = (run_dir / "terminal.log").read_text(encoding="utf-8", errors="replace")
        raise RunFailed(f"{model} with {tables} tables: the plan ended with {process.returncode}:\n{said[-4000:]}")
    stages = {stage.name: stage.secs for stage in stage_log.read(run_dir)["driver"]}
    cpu_secs = usage.ru_utime + usage.ru_stime
    return Planning(model, tables, cpu_secs, {name: stages[name] for name in STAGES if name in stages})


def rows_of(found: Sequence[Planning]) -> Rows:
    """Returns one row per plan, with its CPU time relative to the plan with the fewest tables of the same model."""
    least = {one.model: one for one in sorted(found, key=lambda one: -one.tables)}
    body = tuple(
        (
            one.model,
            str(one.tables),
            f"{one.cpu_secs:.1f}",
            f"{one.cpu_secs / least[one.model].cpu_secs:.1f}",
            *(f"{one.stage_secs[name]:.1f}" if name in one.stage_secs else "–" for name in STAGES),
        )
        for one in found
    )
    return Rows(("model", "tables", "CPU s", "relative", *(f"«{name}» s" for name in STAGES)), body)


def as_json(found: Sequence[Planning]) -> list[dict[str, Any]]:
    """Returns all raw numbers."""
    return [asdict(one) for one in found]
