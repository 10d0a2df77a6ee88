"""The flags `--job_name --task_index --ps_hosts --worker_hosts` of Distributed TensorFlow's `ClusterSpec` examples."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from parallax_runner.errors import ConfigError, Setting
from parallax_runner.frontdoors.door import FrontDoor, Task
from parallax_runner.launch.launchers.manual.rendezvous import split_address

ROLES = {"ps": "server", "worker": "worker"}
EXPECTED = (
    "expected --job_name=worker or ps, --task_index=N, --worker_hosts=host:port,host:port and, with parameter servers, "
    "--ps_hosts=host:port"
)


class ClusterSpec(FrontDoor):
    """The flags of one process. All processes get the same lists of hosts."""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the flags, spelled as in the examples."""
        group = parser.add_argument_group("options of Distributed TensorFlow, instead of --rendezvous")
        group.add_argument("--job_name", metavar="worker|ps", help="role of this process")
        group.add_argument("--task_index", metavar="N", help="index of this process in the host list of its job")
        group.add_argument("--worker_hosts", metavar="HOST:PORT,…", help="all workers; the first starts the driver")
        group.add_argument("--ps_hosts", metavar="HOST:PORT,…", help="all parameter servers")

    @classmethod
    def task(cls, role: str, asked: argparse.Namespace, environ: Mapping[str, str]) -> Task | None:
        """Returns the task that the flags describe, or None if no flag is given."""
        flags = {name: getattr(asked, name) for name in ("job_name", "task_index", "worker_hosts", "ps_hosts")}
        if not any(flags.values()):
            return None
        missing = [f"--{name}" for name in ("job_name", "task_index", "worker_hosts") if not flags[name]]
        if missing:
            raise ConfigError(f"{', '.join(missing)} missing: {EXPECTED}")
        if asked.job_name not in ROLES:
            raise ConfigError(f"{EXPECTED}").about(Setting.of("--job_name", asked.job_name))
        lists = {"worker": _hosts(asked.worker_hosts), "ps": _hosts(asked.ps_hosts)}
        index = number_of(asked.task_index)
        count = len(lists[asked.job_name])
        if index is None or index >= count:
            raise ConfigError(
                f"expected a number, at least 0 and less than {count}, the number of hosts in --{asked.job_name}_hosts"
            ).about(Setting.of("--task_index", asked.task_index))
        return Task(
            ROLES[asked.job_name],
            index,
            meeting_point(lists["worker"][0], "--worker_hosts"),
            workers=len(lists["worker"]),
            servers=len(lists["ps"]),
        )


def meeting_point(address: str, where: str) -> str:
    """Returns the URI of a rendezvous at the address of the first worker. Raises ConfigError if the address is
    invalid."""
    try:
        split_address(f"tcp://{address}")
    except ConfigError as error:
        raise ConfigError(f"{where}: {address!r}: expected host:port for the first worker") from error
    return f"tcp://{address}"


def _hosts(given: str | None) -> Sequence[str]:
    return [host.strip() for host in (given or "").split(",") if host.strip()]


def number_of(given: object) -> int | None:
    """Converts a number or its text to a non-negative integer. Returns None for anything else."""
    text = str(given)
    return int(text) if text.isascii() and text.isdigit() else None
