"""The front-door interface: how another system specifies a process's place in a cluster."""

from __future__ import annotations

import argparse
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from parallax_runner.launch.launchers.manual import secret


@dataclass(frozen=True)
class Task:
    """The place of one process in a cluster.

    Attributes:
        role: worker or server.
        index: rank or index of the process; None lets the driver choose.
        rendezvous: the URI at which all processes meet.
        workers, servers: the numbers of workers and servers in the whole cluster.
        count: the number of processes of this role to start.
        address: the address at which the other processes reach this machine; None: this machine's address on the route
            to the rendezvous.
        gpus: the process's `CUDA_VISIBLE_DEVICES`; None leaves it unchanged.
    """

    role: str
    index: int | None
    rendezvous: str
    workers: int
    servers: int
    count: int = 1
    address: str | None = None
    gpus: str | None = None

    @property
    def starts_driver(self) -> bool:
        """Whether this process starts the driver. Rank 0 starts it, because the other system starts only workers and
        servers."""
        return self.role == "worker" and self.index == 0

    def prepare(self) -> None:
        """Sets this process's environment. Raises LaunchError if the secret is missing, so that the driver and the
        worker of rank 0 do not both report it."""
        if self.gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus
        if urlsplit(self.rendezvous).scheme != "file":
            secret.from_environment()

    def driver_settings(self) -> list[str]:
        """Returns the settings for the driver that rank 0 starts."""
        return [
            "cluster=manual",
            f"cluster.rendezvous={self.rendezvous}",
            f"cluster.workers={self.workers}",
            f"cluster.servers={self.servers}",
        ]

    def worker_options(self, timeout_secs: float) -> list[str]:
        """Returns the command-line options for a process that this process starts."""
        options = [f"--rendezvous={self.rendezvous}", f"--timeout-secs={timeout_secs:g}"]
        if self.index is not None:
            options.append(f"--{'rank' if self.role == 'worker' else 'index'}={self.index}")
        return [*options, *([f"--address={self.address}"] if self.address else [])]


class FrontDoor(ABC):
    """The options and environment variables of one system. `DOORS` in entry.py lists the subclasses."""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Adds this system's own options, with None as default."""
        return

    @classmethod
    @abstractmethod
    def task(cls, role: str, asked: argparse.Namespace, environ: Mapping[str, str]) -> Task | None:
        """Returns the place of this process, or None if no option of this system is given. Raises ConfigError for
        invalid options.

        `role` (worker or server) comes from the module that was started, for systems whose options do not name a role.
        """
