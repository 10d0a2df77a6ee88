"""How many processes `cluster.resource_info` asks for, and which GPUs each of them sees."""

import dataclasses
import shlex
import shutil
from collections.abc import Sequence

from parallax_runner.config.explain import refusal, written
from parallax_runner.config.gpus import detect_gpus
from parallax_runner.config.origins import Origins
from parallax_runner.config.resource_info import Host, listed_slots, read_hosts
from parallax_runner.config.schema import ClusterConfig, RunConfig

FOLLOW = ("workers", "replicas_per_worker", "servers")


def size_cluster(config: RunConfig) -> RunConfig:
    """The configuration with what follows from `cluster.resource_info`, which becomes a list of lines with all ids.

    Raises ConfigError where it cannot be read.
    """
    if config.cluster.resource_info is None:
        return config
    hosts = read_hosts(config.cluster.resource_info)
    workers, replicas_per_worker, servers = _numbers(hosts, config.comm.name)
    cluster = dataclasses.replace(
        config.cluster,
        resource_info=tuple(str(host) for host in hosts),
        workers=workers,
        replicas_per_worker=replicas_per_worker,
        servers=servers,
    )
    return dataclasses.replace(config, cluster=cluster)


def check_cluster(config: RunConfig, origins: Origins) -> None:
    """Refuses numbers beside the hosts that they follow from, and hosts that cannot be read."""
    cluster = config.cluster
    key = "cluster.resource_info"
    fraction = cluster.gpu_memory_fraction
    if fraction is not None and fraction > 1:
        raise refusal(
            "cluster.gpu_memory_fraction", origins, "expected a number, more than 0, at most 1", value=fraction
        )
    if cluster.resource_info is None:
        return
    lines = cluster.resource_info
    if not isinstance(lines, str) and not (isinstance(lines, tuple) and all(isinstance(one, str) for one in lines)):
        expected = "expected the path of a file, or a list of lines such as 'localhost: 0,1'"
        raise refusal(key, origins, expected, value=lines)
    for name in FOLLOW:
        number = f"cluster.{name}"
        in_files = any(number in file.values for file in origins.files if file.group != "cluster")
        if number in origins.given() or in_files:
            reason = f"it follows from {key}={written(lines)}: give one of the two"
            raise refusal(number, origins, reason, value=getattr(cluster, name))
    hosts = read_hosts(lines)
    slots = sum(len(host.slots) for host in hosts)
    if config.comm.name == "ps" and len({len(host.slots) for host in hosts}) > 1:
        counts = ", ".join(f"{host.name} {len(host.slots)}" for host in hosts)
        raise refusal(key, origins, f"under comm=ps every host has as many ids as the others, and these have {counts}")
    if not all(host.is_here for host in hosts):
        _check_remote(config, origins)
    if config.comm.name == "local" and slots > 1:
        raise refusal("comm.name", origins, f"one process, and {key} lists {slots} ids: give one id", value="local")


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
