"""Which kills are tried: role x signal x phase, each with one mode, and what must come of each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

MODES = ("hybrid", "sharded", "ps", "mpi", "local")
ROLES = ("driver", "mpirun", "worker 0", "worker 1", "server 0")
PHASES = ("start", "train", "save", "stop")

# A user, a terminal or a batch system ends a run by these; the driver then saves what was trained.
POLITE = ("SIGTERM", "SIGINT", "SIGHUP")
TO_DRIVER = ("SIGKILL", *POLITE)
# SIGKILL is also what the kernel does where memory ends. Nobody watches whether the driver is stopped: that is Ctrl-Z.
TO_OTHERS = ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGSTOP")
# What the kills of runs with Horovod take in turn.
HOROVOD_MODES = ("sharded", "mpi", "hybrid")
HOROVOD_ROLES = ("worker 1", "worker 0", "worker 1", "worker 0", "mpirun")


@dataclass(frozen=True)
class Kill:
    """One signal to one process. `phase` is when it comes.

    start: as soon as the process exists; train: after the first reported step; save: while a checkpoint is written;
    stop: while the run ends after a SIGTERM to the driver.
    """

    mode: str
    role: str
    signal: str
    phase: str
    backend: str = "auto"

    def __str__(self) -> str:
        backend = "" if self.backend == "auto" else f"{self.backend}-"
        return f"{backend}{self.mode}-{self.role.replace(' ', '_')}-{self.signal}-{self.phase}"


def exists(kill: Kill) -> bool:
    """Whether such a process exists in this mode."""
    if kill.role == "server 0" and kill.mode not in ("ps", "hybrid"):
        return False
    return not (kill.role in ("mpirun", "worker 1") and kill.mode == "local")


def kills() -> list[Kill]:
    """Each possible triple of role, signal and phase once, with the mode that was tried least often so far."""
    chosen: list[Kill] = []
    for role in ROLES:
        for signal, phase in itertools.product(TO_DRIVER if role == "driver" else TO_OTHERS, PHASES):
            possible = [one for one in (Kill(mode, role, signal, phase) for mode in MODES) if exists(one)]
            chosen.append(min(possible, key=lambda one: _tried(chosen, one)))
    return chosen


def horovod_kills() -> list[Kill]:
    """Each pair of signal and phase once under Horovod."""
    pairs = itertools.product(TO_OTHERS, PHASES)
    modes, roles = itertools.cycle(HOROVOD_MODES), itertools.cycle(HOROVOD_ROLES)
    return [Kill(next(modes), next(roles), signal, phase, "horovod") for signal, phase in pairs]


def _tried(chosen: list[Kill], kill: Kill) -> tuple[int, int]:
    """How often the mode was tried with this role, and how often at all."""
    with_mode = [one for one in chosen if one.mode == kill.mode]
    return sum(one.role == kill.role for one in with_mode), len(with_mode)
