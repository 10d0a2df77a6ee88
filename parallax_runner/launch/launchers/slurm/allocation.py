"""Reads the nodes and tasks of the current Slurm job from Slurm's environment variables."""

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence

from parallax_runner.config.schema import ClusterConfig
from parallax_runner.errors import ConfigError, Setting

# Matches one list of numbers in brackets. A name such as «rack[1-2]-n[01-12,20]» can contain several lists.
BRACKETS = re.compile(r"\[([0-9,-]+)\]")
REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the id of the current job, or None outside an allocation."""
    return environ.get("SLURM_JOB_ID")


def sweep_job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the id of the Slurm job that submitit created for one job of a sweep, as squeue shows it: `12`, or `12_3`
    in an array. Returns None in any other process."""
    return queue_id(environ) if environ.get("SUBMITIT_EXECUTOR") == "slurm" else None


def queue_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the id of the current job as squeue shows it: `12`, or `12_3` in an array. Returns None outside an
    allocation."""
    array = environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{environ.get('SLURM_ARRAY_TASK_ID')}" if array else job_id(environ)


def warning_signal(environ: Mapping[str, str] = os.environ) -> signal.Signals:
    """Returns the signal that Slurm sends before the time limit: SIGUSR1, which `job.sbatch` requests, or the signal
    that submitit requests."""
    if sweep_job_id(environ) is None:
        return signal.SIGUSR1
    return signal.Signals[f"SIG{environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"]


def is_surplus_task(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether `srun` has started this process as an additional task. Only the first task is the driver."""
    return _is_in_step(environ) and environ.get("SLURM_PROCID", "0") != "0"


def step_of(environ: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Returns the number of tasks that `srun` has started with this process, and the number of this task. Returns None
    if `srun` has not started this process."""
    tasks, task = environ.get("SLURM_STEP_NUM_TASKS", ""), environ.get("SLURM_PROCID", "")
    if not _is_in_step(environ) or not tasks.isdecimal() or not task.isdecimal():
        return None
    return int(tasks), int(task)


def _is_in_step(environ: Mapping[str, str]) -> bool:
    return environ.get("SLURM_STEP_ID", "").isdecimal()


def host_lines(cluster: ClusterConfig, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Returns the allocation as lines of `cluster.resource_info`, with one slot per task. If the number of workers may
    change, each node has `cluster.tasks_per_node` slots. Outside an allocation,
    returns lines for the nodes that `cluster.nodes` and `cluster.tasks_per_node` request. Raises ConfigError if Slurm's
    variables cannot be read."""
    if job_id(environ) is None:
        return requested_lines(cluster)
    names = expand(environ.get("SLURM_JOB_NODELIST", ""))
    counts = _tasks_of_nodes(len(names), cluster, environ)
    if _is_in_step(environ) and len(counts) < len(names):
        raise ConfigError(
            f"srun has started this process in a step with {len(counts)} of the {len(names)} "
            "nodes of its job, and Slurm's variables describe only this step"
        ).about(
            Setting("cluster.launcher", "slurm"),
            remedy=f"start the command without srun, or with srun --nodes={len(names)}",
        )
    if not names or len(names) != len(counts):
        told = {name: environ.get(name) for name in ("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE")}
        raise ConfigError(f"expected a number of tasks for each node, but Slurm set {told}").about(
            Setting("cluster.launcher", "slurm")
        )
    return tuple(_line(name, count) for name, count in zip(names, counts, strict=True))


def _tasks_of_nodes(nodes: int, cluster: ClusterConfig, environ: Mapping[str, str]) -> list[int]:
    """Returns the number of tasks of each node of the allocation."""
    counts = tasks_per_node(environ.get("SLURM_TASKS_PER_NODE") or f"1(x{nodes})")
    if cluster.min_workers is None and cluster.max_workers is None:
        return counts
    # `job.sbatch` then requests CPUs instead of tasks (docs/design/0110).
    return [cluster.tasks_per_node] * len(counts)


def requested_lines(cluster: ClusterConfig) -> tuple[str, ...]:
    """Returns lines for the nodes that `cluster.nodes` and `cluster.tasks_per_node` request. Their names are not those
    of real nodes."""
    return tuple(_line(f"node{number}", cluster.tasks_per_node) for number in range(1, cluster.nodes + 1))


def _line(name: str, tasks: int) -> str:
    return f"{name}: {','.join(map(str, range(tasks)))}"


def expand(node_list: str) -> list[str]:
    """Returns all names in a node list in Slurm's short form, such as «n[1-3,07],gpu4»."""
    return [name for part in _parts(node_list) for name in _names(part)]


def tasks_per_node(counts: str) -> list[int]:
    """Returns all numbers in a list in Slurm's short form, such as «2(x3),1». Raises ConfigError if the list
    cannot be read."""
    found = [REPEATED.fullmatch(part) for part in counts.split(",")]
    if not all(found):
        raise ConfigError("expected numbers such as «2(x3),1»").about(Setting("SLURM_TASKS_PER_NODE", repr(counts)))
    return [int(one[1]) for one in found if one for _ in range(int(one[2] or 1))]


def _parts(node_list: str) -> Sequence[str]:
    # A comma inside brackets is part of a name.
    return re.findall(r"(?:[^,\[]|\[[^\]]*\])+", node_list)


def _names(part: str) -> Iterator[str]:
    found = BRACKETS.search(part)
    if found is None:
        yield part
        return
    for numbers in found[1].split(","):
        first, _, last = numbers.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from _names(part[: found.start()] + str(number).zfill(len(first)) + part[found.end() :])
