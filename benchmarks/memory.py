"""`scripts/bench memory`: measures the peak memory of each process of a run with large tables.

A peak is the kernel's `VmHWM`. Each number is the difference from the same run with tables of `LITTLE_ROWS` rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks import machine, stage_log
from benchmarks.runs import Run
from benchmarks.tables import Rows

CONF = Path(__file__).parent / "conf"
LITTLE_ROWS = 1000
WIDTH = 64
FLOAT_BYTES = 4
# A table and Adagrad's accumulator.
COPIES_OF_ROWS = 2
LOOK_EVERY_SECS = 0.05
MODELS: Mapping[str, str] = {"graph": "large_tables", "keras": "large_tables_keras"}
START, STEPS, SAVE = "start", "steps", "save"
# The stage of a worker's start after which its variables have their values.
INITIALIZED = "initialize"
# After this text, the kernel counts the peak of a process anew.
COUNT_PEAK_ANEW = "5"


@dataclass(frozen=True)
class Case:
    """What a run trains: a kind of model, a mode, a number of workers, the rows of each table, and the number of
    tables."""

    model: str
    comm: str
    workers: int
    rows: int
    tables: int = 1

    @property
    def overrides(self) -> list[str]:
        """The command line of the case, without the steps and checkpoints."""
        return [
            f"hydra.searchpath=[{CONF}]",
            f"model={MODELS[self.model]}",
            *(["optimizer=adagrad"] if self.model == "graph" else []),
            f"comm={self.comm}",
            f"cluster.workers={self.workers}",
            f"data.cardinalities={[self.rows] * self.tables}",
            "data.validation_examples=0",
            "tracking=off",
        ]

    @property
    def variable_bytes(self) -> int:
        """The size of one table. Its slot has the same size."""
        return self.rows * WIDTH * FLOAT_BYTES

    @property
    def tables_bytes(self) -> int:
        """The size of all tables and their slots."""
        return self.tables * self.variable_bytes * COPIES_OF_ROWS

    def own_bytes(self, process: str) -> int:
        """The size of the rows and slots that a process keeps."""
        if process.startswith("worker") and self.comm == "sharded":
            return self.tables_bytes // self.workers
        if process.startswith("worker") and self.comm in ("mpi", "local"):
            return self.tables_bytes
        return self.tables_bytes if process.startswith("server") else 0


@dataclass(frozen=True)
class Peak:
    """The peak of one process in one part of a run: from its beginning (`start`), in steps, or with checkpoints."""

    process: str
    part: str
    peak_bytes: int


@dataclass(frozen=True)
class Above:
    """How much more memory a process needs than in the same run with little tables."""

    case: Case
    process: str
    own_bytes: int
    bytes_of_parts: Mapping[str, int]


class Watch:
    """Reads the peaks of the processes of a run while it runs. Use it as a context manager around the run.

    Calls `on_process` with the name and the id of each process when it appears.
    """

    def __init__(self, run_dir: Path, root_pid: int, on_process: Callable[[str, int], None]) -> None:
        self._run_dir, self._on_process = run_dir, on_process
        self._root = psutil.Process(root_pid)
        self._peaks: dict[tuple[str, str], int] = {}
        self._parts: dict[int, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_until_ended, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def peaks(self) -> list[Peak]:
        """Returns the peaks of all processes that ran a part of the training."""
        return [Peak(process, part, size) for (process, part), size in sorted(self._peaks.items())]

    def _look_until_ended(self) -> None:
        while not self._ended.wait(LOOK_EVERY_SECS):
            for process in _family(self._root):
                self._look_at(process)

    def _look_at(self, process: psutil.Process) -> None:
        name = _name_of(process, self._root)
        if name is None:
            return
        if process.pid not in self._parts:
            self._parts[process.pid] = START
            self._on_process(name, process.pid)
        part = self._parts[process.pid]
        if part == START and self._is_initialized(name):
            self._note(name, part, process.pid)
            part = self._parts[process.pid] = STEPS
            _count_anew(process.pid)
        self._note(name, part, process.pid)

    def _note(self, name: str, part: str, pid: int) -> None:
        peak_bytes = peak_of(pid)
        if peak_bytes is not None:
            self._peaks[name, part] = max(peak_bytes, self._peaks.get((name, part), 0))

    def _is_initialized(self, name: str) -> bool:
        """Whether the variables have their values. The driver and the servers follow worker 0."""
        log = self._run_dir / "logs" / f"{name if name.startswith('worker') else 'worker_0'}.log"
        if not log.exists():
            return False
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        return any(stage.name == INITIALIZED for stage in stage_log.parse(lines))


def peak_of(pid: int) -> int | None:
    """Returns the peak of a process in bytes since it began or since `_count_anew`, or None if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("VmHWM:")]
    return int(found[0][1]) * 1024 if found else None


def _count_anew(pid: int) -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(COUNT_PEAK_ANEW, encoding="utf-8")
    except OSError:
        return  # the process has ended


def _family(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _name_of(process: psutil.Process, root: psutil.Process) -> str | None:
    """Returns the name of the log of a process, or None if the process takes no part in the training."""
    if process.pid == root.pid:
        return "driver"
    try:
        words = process.cmdline()
        if "parallax_runner.worker" in words:
            return f"worker_{process.environ().get('OMPI_COMM_WORLD_RANK', '0')}"
        return "server_0" if "parallax_runner.server" in words else None
    except psutil.Error:
        return None


def measure(
    cases: Sequence[Case], *, steps: int, overrides: Sequence[str], folder: Path, tell: Callable[[str], None]
) -> list[Above]:
    """Measures each case, without and with a checkpoint. Raises RunFailed."""
    found = []
    baselines: dict[Case, Mapping[tuple[str, str], int]] = {}
    for case in cases:
        little = replace(case, rows=LITTLE_ROWS)
        if little not in baselines:
            baselines[little] = peaks_of(little, steps=steps, overrides=overrides, folder=folder)
        whole = peaks_of(case, steps=steps, overrides=overrides, folder=folder)
        found += _above(case, whole, baselines[little])
        tell(f"{case}: measured")
    return found


def peaks_of(case: Case, *, steps: int, overrides: Sequence[str], folder: Path) -> dict[tuple[str, str], int]:
    """Returns the peak in bytes of each process in each part of a run, by the names of process and part."""
    name = f"{case.model}_{case.comm}_{case.workers}_{case.rows}"
    plain = watched(folder / name, [*case.overrides, f"train.steps={steps}", "ckpt=off", *overrides])
    saving = watched(folder / f"{name}_saving", [*case.overrides, f"train.steps={steps}", *overrides])
    found = {(one.process, one.part): one.peak_bytes for one in plain}
    return found | {(one.process, SAVE): one.peak_bytes for one in saving if one.part == STEPS}


def watched(
    run_dir: Path, overrides: Sequence[str], on_process: Callable[[str, int], None] = lambda name, pid: None
) -> list[Peak]:
    """Runs the command line `overrides` and returns the peaks of its processes. Calls `on_process` with the name and
    the id of each process when it appears. Raises RunFailed."""
    with Run(run_dir, overrides, cwd=machine.ROOT) as run, Watch(run_dir, run.pid, on_process) as watch:
        run.wait()
    return watch.peaks()


def _above(case: Case, whole: Mapping[tuple[str, str], int], little: Mapping[tuple[str, str], int]) -> list[Above]:
    processes = sorted({process for process, _ in whole})
    return [
        Above(
            case,
            process,
            case.own_bytes(process),
            {
                part: whole[process, part] - little[process, part]
                for part in (START, STEPS, SAVE)
                if (process, part) in whole
            },
        )
        for process in processes
    ]


def rows_of(found: Sequence[Above]) -> Rows:
    """Returns one row per case and process."""
    body = tuple(
        (
            one.case.model,
            one.case.comm,
            f"{one.case.rows:,}",
            one.process,
            _mb(one.own_bytes),
            *(_mb(one.bytes_of_parts[part]) if part in one.bytes_of_parts else "–" for part in (START, STEPS, SAVE)),
        )
        for one in found
    )
    return Rows(
        ("model", "mode", "rows", "process", "MB own", "MB at start", "MB in steps", "MB with saving"), body, left=2
    )


def as_json(found: Sequence[Above]) -> list[dict[str, Any]]:
    """Returns all raw numbers."""
    return [asdict(one) for one in found]


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f}"
