"""The hosts and the numbers of processes in group `cluster`."""

import shlex
import shutil
from collections.abc import Sequence
from typing import Any

from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal, written
from parallax_runner.config.origins import Origins
from parallax_runner.config.resource_info import Host, read_hosts
from parallax_runner.config.schema import RunConfig

KEY = "cluster.resource_info"
FOLLOW = ("workers", "replicas_per_worker", "servers")  # the hosts determine these numbers


def check_gpu_memory(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a process would take more memory than a GPU has."""
    fraction = config.cluster.gpu_memory_fraction
    if fraction is not None and fraction > 1:
        expected = "expected a number, greater than 0 and at most 1"
        raise refusal("cluster.gpu_memory_fraction", origins, expected, value=fraction)


def check_hosts(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for hosts that cannot be read, or that contradict other settings."""
    lines = config.cluster.resource_info
    if lines is None:
        return
    _check_kind(lines, origins)
    refuse_numbers(config, origins, f"{KEY}={written(lines)} already sets this number; omit one of the two keys")
    hosts = read_hosts(lines)
    check_even(hosts, config, origins)
    if not all(host.is_here for host in hosts):
        _check_remote(config, origins)
    _check_one_process(hosts, config, origins)


def _check_kind(lines: Any, origins: Origins) -> None:
    if isinstance(lines, str):
        return
    if not isinstance(lines, tuple) or not all(isinstance(one, str) for one in lines):
        expected = "expected the path of a file, or a list of lines such as 'localhost: 0,1'"
        raise refusal(KEY, origins, expected, value=lines)


def _check_one_process(hosts: Sequence[Host], config: RunConfig, origins: Origins) -> None:
    slots = sum(len(host.slots) for host in hosts)
    if mode_of(config.comm).is_one_process and slots > 1:
        needed = f"this mode runs one process, but {KEY} lists {slots} ids; list one id"
        raise refusal("comm.name", origins, needed, value=config.comm.name)


def check_even(hosts: Sequence[Host], config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if hosts have different numbers of ids, and the mode has one worker for each host."""
    if not mode_of(config.comm).is_all_on_servers:
        return
    if len({len(host.slots) for host in hosts}) > 1:
        counts = ", ".join(f"{len(host.slots)} on {host.name}" for host in hosts)
        reason = f"under comm={config.comm.name} all hosts must have the same number of ids, but there are {counts}"
        raise refusal(KEY, origins, reason)


def refuse_numbers(config: RunConfig, origins: Origins, reason: str) -> None:
    """Raises ConfigError if the user sets a number of processes that the hosts determine."""
    for name in FOLLOW:
        number = f"cluster.{name}"
        if origins.is_set(number):
            raise refusal(number, origins, reason, value=getattr(config.cluster, name))


def _check_remote(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the mode starts no remote processes or `cluster.remote_shell` is not a program."""
    if mode_of(config.comm).is_one_process:
        needed = f"this mode runs one process on this machine, but {KEY} lists another host"
        raise refusal("comm.name", origins, needed, value=config.comm.name)
    key, value = "cluster.remote_shell", config.cluster.remote_shell
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise refusal(key, origins, f"a shell cannot split this command: {error}", value=value) from error
    if not words or shutil.which(words[0]) is None:
        expected = "expected an installed program that runs a command on another host, such as ssh"
        raise refusal(key, origins, expected, value=value)
