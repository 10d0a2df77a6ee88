"""How many processes `cluster.resource_info` asks for, and which GPUs each of them sees."""

import dataclasses
import re
import shlex
import shutil
from collections.abc import Sequence

from parallax_runner.config import rendezvous, slurm_allocation
from parallax_runner.config.explain import refusal, written
from parallax_runner.config.gpus import detect_gpus
from parallax_runner.config.origins import Origins
from parallax_runner.config.resource_info import Host, listed_slots, read_hosts
from parallax_runner.config.schema import ClusterConfig, RunConfig

# Of a job that launcher=slurm submits.
OF_SUBMITTED = ("nodes", "tasks_per_node", "time_limit", "submit", "follow", "sbatch_options")
TIME_LIMIT = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
FOLLOW = ("workers", "replicas_per_worker", "servers")


def size_cluster(config: RunConfig) -> RunConfig:
    """The configuration with what follows from `cluster.resource_info`, which becomes a list of lines with all ids.
    Under Slurm that is what its job has.

    Raises ConfigError where it cannot be read.
    """
    lines = config.cluster.resource_info
    if config.cluster.launcher == slurm_allocation.LAUNCHER and lines is None:
        lines = slurm_allocation.host_lines(config.cluster)
    if lines is None:
        return config
    hosts = read_hosts(lines)
    workers, replicas_per_worker, servers = _numbers(hosts, config.comm.name)
    cluster = dataclasses.replace(
        config.cluster,
        resource_info=tuple(str(host) for host in hosts),
        workers=workers,
        replicas_per_worker=replicas_per_worker,
        servers=servers,
    )
    return dataclasses.replace(config, cluster=cluster)


def spans_hosts(cluster: ClusterConfig) -> bool:
    """Whether the workers of a run may be on several hosts: of processes that somebody else starts nobody knows it."""
    return cluster.launcher == rendezvous.LAUNCHER or len(cluster.resource_info or ()) > 1


def check_cluster(config: RunConfig, origins: Origins) -> None:
    """Refuses numbers beside the hosts that they follow from, and hosts that cannot be read."""
    cluster = config.cluster
    key = "cluster.resource_info"
    fraction = cluster.gpu_memory_fraction
    if fraction is not None and fraction > 1:
        raise refusal(
            "cluster.gpu_memory_fraction", origins, "expected a number, more than 0, at most 1", value=fraction
        )
    if cluster.launcher == slurm_allocation.LAUNCHER:
        _check_slurm(config, origins)
        return
    for name in OF_SUBMITTED:
        if f"cluster.{name}" in origins.given():
            needed = "it is for a job that Slurm starts: it goes with cluster=slurm"
            raise refusal(f"cluster.{name}", origins, needed, value=getattr(cluster, name))
    if cluster.resource_info is None:
        return
    lines = cluster.resource_info
    if not isinstance(lines, str) and not (isinstance(lines, tuple) and all(isinstance(one, str) for one in lines)):
        expected = "expected the path of a file, or a list of lines such as 'localhost: 0,1'"
        raise refusal(key, origins, expected, value=lines)
    _refuse_numbers(config, origins, f"it follows from {key}={written(lines)}: give one of the two")
    hosts = read_hosts(lines)
    slots = sum(len(host.slots) for host in hosts)
    _check_even(hosts, config, origins)
    if not all(host.is_here for host in hosts):
        _check_remote(config, origins)
    if config.comm.name == "local" and slots > 1:
        raise refusal("comm.name", origins, f"one process, and {key} lists {slots} ids: give one id", value="local")


def _check_even(hosts: Sequence[Host], config: RunConfig, origins: Origins) -> None:
    if config.comm.name == "ps" and len({len(host.slots) for host in hosts}) > 1:
        counts = ", ".join(f"{host.name} {len(host.slots)}" for host in hosts)
        reason = f"under comm=ps every host has as many ids as the others, and these have {counts}"
        raise refusal("cluster.resource_info", origins, reason)


def _refuse_numbers(config: RunConfig, origins: Origins, reason: str) -> None:
    for name in FOLLOW:
        number = f"cluster.{name}"
        in_files = any(number in file.values for file in origins.files if file.group != "cluster")
        if number in origins.given() or in_files:
            raise refusal(number, origins, reason, value=getattr(config.cluster, name))


def _check_slurm(config: RunConfig, origins: Origins) -> None:
    """Slurm says which hosts there are, and how many tasks each has."""
    cluster = config.cluster
    _refuse_numbers(
        config, origins, "it follows from cluster.nodes and cluster.tasks_per_node, or the job's allocation"
    )
    if cluster.resource_info is not None:
        raise refusal(
            "cluster.resource_info", origins, "under Slurm its job has the hosts", value=cluster.resource_info
        )
    if config.comm.name == "local":
        needed = "one process, and Slurm's tasks are several"
        raise refusal("comm.name", origins, needed, value="local", hint="cluster=local, in a job of your own")
    limit = cluster.time_limit
    if limit is not None and not TIME_LIMIT.fullmatch(str(limit)):
        expected = "expected minutes, hours:minutes:seconds or days-hours, as sbatch takes it, in quotes with a colon"
        raise refusal("cluster.time_limit", origins, expected, value=limit)
    options = cluster.sbatch_options
    if not isinstance(options, str) and not all(isinstance(one, str) for one in options):
        raise refusal("cluster.sbatch_options", origins, "expected a string or a list of strings", value=options)
    _check_even(read_hosts(slurm_allocation.host_lines(cluster)), config, origins)


def _check_remote(config: RunConfig, origins: Origins) -> None:
    """What processes on other hosts need: a mode that starts some, and a program that starts them."""
    if config.comm.name == "local":
        needed = "one process on this machine, and cluster.resource_info lists another host"
        raise refusal("comm.name", origins, needed, value="local")
    key, value = "cluster.remote_shell", config.cluster.remote_shell
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise refusal(key, origins, f"a shell cannot split it: {error}", value=value) from error
    if not words or shutil.which(words[0]) is None:
        expected = "expected a program that is there, and that runs a command on a host as ssh does"
        raise refusal(key, origins, expected, value=value)


def devices_of_worker(cluster: ClusterConfig) -> dict[str, int]:
    """How many devices of each kind a worker has, by TensorFlow's name for the kind."""
    return {
        "CPU": max(cluster.replicas_per_worker, cluster.cpu_devices or 1),
        "GPU": len(visible_gpus(cluster, rank=0)),
    }


def visible_gpus(cluster: ClusterConfig, *, rank: int, gpus: Sequence[int] | None = None) -> tuple[int, ...]:
    """Ids of the GPUs that worker `rank` sees, one a replica; none on a machine without.

    They are those of `cluster.resource_info`, otherwise `gpus`, by default all that are found here; where workers are
    more than GPUs they share them in turn.
    """
    found = tuple(detect_gpus() if gpus is None else gpus)
    if not found:
        return ()
    if cluster.resource_info is not None:
        found = listed_slots(cluster.resource_info)
    first = rank * cluster.replicas_per_worker
    wanted = range(first, first + cluster.replicas_per_worker)
    return tuple(dict.fromkeys(found[number % len(found)] for number in wanted))


def _numbers(hosts: Sequence[Host], comm: str) -> tuple[int, int, int]:
    """Workers, replicas in each, servers: one worker a host under ps, otherwise one a slot; one server a host."""
    slots = sum(len(host.slots) for host in hosts)
    if comm == "ps":
        return len(hosts), slots // len(hosts), len(hosts)
    return slots, 1, len(hosts)
