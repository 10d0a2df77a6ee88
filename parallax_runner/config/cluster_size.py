"""Derives the number of processes, and the GPUs of each process, from `cluster.resource_info`."""

import dataclasses
import re
import shlex
import shutil
from collections.abc import Sequence

from parallax_runner.config import rendezvous, slurm_allocation
from parallax_runner.config.comm_mode import CommMode, mode_of
from parallax_runner.config.explain import refusal, written
from parallax_runner.config.gpus import detect_gpus
from parallax_runner.config.origins import Origins
from parallax_runner.config.resource_info import Host, listed_slots, read_hosts
from parallax_runner.config.schema import ClusterConfig, RunConfig

TIME_LIMIT = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
FOLLOW = ("workers", "replicas_per_worker", "servers")


def size_cluster(config: RunConfig) -> RunConfig:
    """Returns the configuration with the numbers of processes that `cluster.resource_info` implies.
    `cluster.resource_info` becomes a list of lines that contain all ids; under Slurm, the job determines these lines.

    Raises ConfigError if `cluster.resource_info` or the variables of the Slurm job cannot be read.
    """
    lines = config.cluster.resource_info
    if config.cluster.launcher == slurm_allocation.LAUNCHER and lines is None:
        lines = slurm_allocation.host_lines(config.cluster)
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


def spans_hosts(cluster: ClusterConfig) -> bool:
    """Returns whether the workers can be on several hosts. This is always true for processes that the user starts."""
    return cluster.launcher == rendezvous.LAUNCHER or len(cluster.resource_info or ()) > 1


def check_cluster(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for numbers of processes that contradict `resource_info`, and for host lists that cannot be
    read."""
    cluster = config.cluster
    key = "cluster.resource_info"
    fraction = cluster.gpu_memory_fraction
    if fraction is not None and fraction > 1:
        raise refusal(
            "cluster.gpu_memory_fraction", origins, "expected a number, greater than 0 and at most 1", value=fraction
        )
    if cluster.launcher == slurm_allocation.LAUNCHER:
        _check_slurm(config, origins)
        return
    if cluster.resource_info is None:
        return
    lines = cluster.resource_info
    if not isinstance(lines, str) and not (isinstance(lines, tuple) and all(isinstance(one, str) for one in lines)):
        expected = "expected the path of a file, or a list of lines such as 'localhost: 0,1'"
        raise refusal(key, origins, expected, value=lines)
    _refuse_numbers(config, origins, f"{key}={written(lines)} already sets this number; omit one of the two keys")
    hosts = read_hosts(lines)
    slots = sum(len(host.slots) for host in hosts)
    _check_even(hosts, config, origins)
    if not all(host.is_here for host in hosts):
        _check_remote(config, origins)
    if mode_of(config.comm).is_one_process and slots > 1:
        needed = f"this mode runs one process, but {key} lists {slots} ids; list one id"
        raise refusal("comm.name", origins, needed, value=config.comm.name)


def _check_even(hosts: Sequence[Host], config: RunConfig, origins: Origins) -> None:
    if mode_of(config.comm).is_all_on_servers and len({len(host.slots) for host in hosts}) > 1:
        counts = ", ".join(f"{len(host.slots)} on {host.name}" for host in hosts)
        reason = f"under comm={config.comm.name} all hosts must have the same number of ids, but there are {counts}"
        raise refusal("cluster.resource_info", origins, reason)


def _refuse_numbers(config: RunConfig, origins: Origins, reason: str) -> None:
    for name in FOLLOW:
        number = f"cluster.{name}"
        in_files = any(number in file.values for file in origins.files if file.group != "cluster")
        if number in origins.given() or in_files:
            raise refusal(number, origins, reason, value=getattr(config.cluster, name))


def _check_slurm(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for settings whose values Slurm determines, such as hosts and numbers of tasks."""
    cluster = config.cluster
    source = "the job's allocation, or from cluster.nodes and cluster.tasks_per_node"
    _refuse_numbers(config, origins, f"under Slurm, this number follows from {source}; omit this key")
    if cluster.resource_info is not None:
        raise refusal(
            "cluster.resource_info",
            origins,
            "under Slurm the job determines the hosts; omit this key",
            value=cluster.resource_info,
        )
    if mode_of(config.comm).is_one_process:
        needed = "this mode runs one process, but a Slurm job has several tasks"
        raise refusal("comm.name", origins, needed, value=config.comm.name, hint="cluster=local, in your own Slurm job")
    limit = cluster.time_limit
    if limit is not None and not TIME_LIMIT.fullmatch(str(limit)):
        expected = (
            "expected sbatch's format, such as minutes, hours:minutes:seconds or days-hours; quote a value that "
            "contains a colon"
        )
        raise refusal("cluster.time_limit", origins, expected, value=limit)
    options = cluster.sbatch_options
    if not isinstance(options, str) and not all(isinstance(one, str) for one in options):
        raise refusal("cluster.sbatch_options", origins, "expected a string or a list of strings", value=options)
    _check_even(read_hosts(slurm_allocation.host_lines(cluster)), config, origins)


def _check_remote(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the mode starts no remote processes or `cluster.remote_shell` is not a program."""
    if mode_of(config.comm).is_one_process:
        needed = "this mode runs one process on this machine, but cluster.resource_info lists another host"
        raise refusal("comm.name", origins, needed, value=config.comm.name)
    key, value = "cluster.remote_shell", config.cluster.remote_shell
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise refusal(key, origins, f"a shell cannot split this command: {error}", value=value) from error
    if not words or shutil.which(words[0]) is None:
        expected = "expected an installed program that runs a command on another host, such as ssh"
        raise refusal(key, origins, expected, value=value)


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
