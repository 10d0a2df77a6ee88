"""Derives the number of processes, and the GPUs of each process, from `cluster.resource_info`."""

import dataclasses
from collections.abc import Sequence

from parallax_runner.config.comm_mode import CommMode, mode_of
from parallax_runner.config.gpus import detect_gpus
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.resource_info import Host, listed_slots, read_hosts
from parallax_runner.config.schema import ClusterConfig, RunConfig
from parallax_runner.config.worker_numbers import ClusterSize, is_elastic, largest_of


def size_cluster(config: RunConfig) -> RunConfig:
    """Returns the configuration with the numbers of processes that `cluster.resource_info` implies.
    `cluster.resource_info` becomes a list of lines that contain all ids. Without it, a launcher that has an allocation
    determines these lines. A run whose number of workers changes begins with the lines that the configuration requests.

    Raises ConfigError if `cluster.resource_info` or the variables of the Slurm job cannot be read.
    """
    lines = config.cluster.resource_info
    # The driver starts the process of a mode with one process itself, whatever the launcher is.
    if lines is None and not mode_of(config.comm).is_one_process:
        lines = _allocated_lines(config)
    if lines is None:
        return config
    hosts = read_hosts(lines)
    workers, replicas_per_worker, servers = _numbers(hosts, mode_of(config.comm))
    cluster = dataclasses.replace(
        config.cluster,
        resource_info=tuple(str(host) for host in hosts),
        workers=workers,
        replicas_per_worker=replicas_per_worker,
        servers=servers,
    )
    return dataclasses.replace(config, cluster=cluster)


def _allocated_lines(config: RunConfig) -> tuple[str, ...] | None:
    """Returns the lines of the allocation, or the requested lines if the run begins with another number of slots. Only
    a run whose number of workers changes then continues on the allocation (driver/resizing.py)."""
    launcher = declared_by(config.cluster.launcher)
    lines: tuple[str, ...] | None = launcher.host_lines(config.cluster)
    requested: tuple[str, ...] | None = launcher.requested_lines(config.cluster) if is_elastic(config) else None
    if lines is None or requested is None or len(listed_slots(lines)) == len(listed_slots(requested)):
        return lines
    return requested


def largest_size(hosts: Sequence[Host], numbers: tuple[int, ...], mode: CommMode) -> ClusterSize | None:
    """Returns the size with the largest of `numbers` of workers that these hosts can have, or None if they have too
    few. The workers are on the first hosts."""
    if not hosts:
        return None
    workers = largest_of(numbers, _numbers(hosts, mode)[0])
    if workers is None:
        return None
    chosen = hosts[:workers] if mode.is_all_on_servers else _with_slots(hosts, workers)
    return ClusterSize(workers, len(chosen), tuple(str(host) for host in chosen))


def _with_slots(hosts: Sequence[Host], slots: int) -> list[Host]:
    """Returns the first hosts, with `slots` slots altogether."""
    chosen = []
    for host in hosts:
        if slots > 0:
            chosen.append(dataclasses.replace(host, slots=host.slots[:slots]))
        slots -= len(host.slots)
    return chosen


def replicas_of(config: RunConfig) -> int:
    """Returns the number of replicas that share a step. The cluster must be sized."""
    if mode_of(config.comm).is_one_process:
        return 1
    return config.cluster.workers * config.cluster.replicas_per_worker


def spans_hosts(cluster: ClusterConfig) -> bool:
    """Returns whether the workers can be on several hosts. This is always true for processes that the user starts."""
    if declared_by(cluster.launcher).processes_stand_by:
        return True
    return len(cluster.resource_info or ()) > 1


def devices_of_worker(cluster: ClusterConfig) -> dict[str, int]:
    """Returns how many devices of each type a worker has. The keys are TensorFlow's device type names."""
    return {
        "CPU": max(cluster.replicas_per_worker, cluster.cpu_devices or 1),
        "GPU": len(visible_gpus(cluster, rank=0)),
    }


def visible_gpus(cluster: ClusterConfig, *, rank: int, gpus: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns the GPU ids of worker `rank`, one per replica. On a machine without GPUs, returns an empty tuple.

    The ids come from `cluster.resource_info` or from `gpus`, which defaults to all GPUs of this machine. If there are
    more workers than GPUs, GPUs are assigned to workers in round-robin order.
    """
    found = tuple(detect_gpus() if gpus is None else gpus)
    if not found:
        return ()
    if cluster.resource_info is not None:
        found = listed_slots(cluster.resource_info)
    first = rank * cluster.replicas_per_worker
    wanted = range(first, first + cluster.replicas_per_worker)
    return tuple(dict.fromkeys(found[number % len(found)] for number in wanted))


def _numbers(hosts: Sequence[Host], mode: CommMode) -> tuple[int, int, int]:
    """Returns the numbers of workers, replicas per worker, and servers.

    There is one server per host. If all variables are on servers, there is one worker per host; otherwise, there is
    one worker per slot."""
    slots = sum(len(host.slots) for host in hosts)
    if mode.is_all_on_servers:
        return len(hosts), slots // len(hosts), len(hosts)
    return slots, 1, len(hosts)
