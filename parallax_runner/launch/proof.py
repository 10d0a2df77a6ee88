"""Before the first step, each process sends a claim that describes itself. The driver compares the claim with the
plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from parallax_runner.files.regular import open_regular
from parallax_runner.launch.job import Job
from parallax_runner.plan.plan import FILE_NAME


class World(NamedTuple):
    """A process's rank, and the number of ranks that exchange gradients, as the backend reports them."""

    rank: int
    size: int


def claim(run_dir: Path, world: World | None) -> dict[str, Any]:
    """Returns the claim that this process sends to the driver. `world` is None if the plan has no collectives."""
    rank, size = world or (None, None)
    return {"rank": rank, "world_size": size, "plan": plan_fingerprint(run_dir)}


def plan_fingerprint(run_dir: Path) -> str:
    """Returns a hash of the plan file as this host sees it. A network file system may still show an older version of
    the file."""
    with open_regular(run_dir / FILE_NAME) as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


class LaunchProof:
    """Compares the claims of one attempt's processes with the plan."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._missing = {("worker", rank) for rank in range(job.workers)} | {("server", i) for i in range(job.servers)}

    @property
    def is_complete(self) -> bool:
        """Whether all processes have sent a correct claim."""
        return not self._missing

    def take(self, role: str, index: int, claimed: Mapping[str, Any]) -> str | None:
        """Checks the claim of one process. Returns a description of the fault, or None if the claim is correct."""
        plan = plan_fingerprint(self._job.run_dir)
        fault = fault_of(claimed, plan, index=index, workers=self._job.workers)
        if fault is None:
            self._missing.discard((role, index))
        return fault


def surplus(job: Job, name: str, pid: object, host: str, *, beside: int | None) -> str:
    """Returns the message about a process that identifies itself as `name`. Either the process with the pid `beside`
    already has that name, or the plan has no such process."""
    already = "" if beside is None else f", as does pid {beside}"
    return (
        f"pid {pid} on {host} reports that it is {name}{already}; expected {job.workers} workers and {job.servers} "
        "servers. The launcher gave several processes the same rank, or started too many"
    )


def fault_of(claimed: Mapping[str, Any], plan: str, *, index: int, workers: int) -> str | None:
    """Returns a description of the difference between the claim of process `index` and what is expected, or None if
    there is no difference. `plan` is the fingerprint of the driver's plan file."""
    size, rank = claimed["world_size"], claimed["rank"]
    if size == 1 and workers > 1:
        return (
            f"it is alone in an MPI world of 1 process, expected one world of {workers} workers: the launcher has "
            "started them separately. Start the workers with the mpirun of this environment (srun needs --mpi=pmix)"
        )
    if size is not None and size != workers:
        return f"its MPI world has {size} processes, expected {workers} workers: another launcher also started workers"
    if rank is not None and rank != index:
        return f"it is rank {rank} of its MPI world, expected rank {index}, which its launcher set"
    if claimed["plan"] != plan:
        return (
            f"it read a {FILE_NAME} with the fingerprint {claimed['plan']}, but the driver wrote one with "
            f"{plan}: run_dir must be on a file system that shows all hosts the same files"
        )
    return None
