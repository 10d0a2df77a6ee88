"""Which kills of `fit` are tried: target x phase, each with one mode, with and without restarts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

MODES = ("sharded", "hybrid", "ps", "mpi")
# In this order. Workers exist from `start` to `validate`.
PHASES = (
    "capture",
    "ship",
    "start",
    "join",
    "initialize",
    "train",
    "callback",
    "save",
    "validate",
    "export",
    "end",
)
WITH_WORKERS = PHASES[2:9]
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")


@dataclass(frozen=True)
class FitKill:
    """One signal to one process of a run of `fit`, in one phase. `restarts` is `train.max_restarts`."""

    mode: str
    target: str
    signal: str
    phase: str
    restarts: int = 0

    def __str__(self) -> str:
        return f"{self.phase}-{self.target.replace(' ', '_')}-{self.signal}-{self.restarts}-{self.mode}"


def fit_kills() -> list[FitKill]:
    """Each signal to the driver in each phase, and a SIGKILL of a worker in each of its phases, with restarts and
    without."""
    modes = itertools.cycle(MODES)
    of_driver = [FitKill(next(modes), "driver", signal, phase) for phase, signal in itertools.product(PHASES, SIGNALS)]
    of_workers = [
        FitKill(next(modes), f"worker {number % 2}", "SIGKILL", phase, restarts)
        for number, (phase, restarts) in enumerate(itertools.product(WITH_WORKERS, (2, 0)))
    ]
    return of_driver + of_workers
