"""What a front door is: another system's way to tell a process which one of a cluster it is."""

from __future__ import annotations

import argparse
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from parallax_runner.launch.manual import secret


@dataclass(frozen=True)
class Task:
    """What one process of a cluster is told.

    Attributes:
        role: worker or server.
        index: its rank or index; None lets the driver choose.
        rendezvous: where all meet.
        workers, servers: of the whole cluster.
        count: how many of its role stand by in it.
        address: of this machine, at which the others reach it; None: the one on the way to the rendezvous.
        gpus: its `CUDA_VISIBLE_DEVICES`; None leaves it as it is.
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
        """Rank 0 does: these systems have no driver that somebody would start."""
        return self.role == "worker" and self.index == 0

    def prepare(self) -> None:
        """Sets this process's environment. Raises LaunchError where it lacks the secret, which driver and worker of
        rank 0 would both say."""
        if self.gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus
        if urlsplit(self.rendezvous).scheme != "file":
            secret.from_environment()

    def driver_settings(self) -> list[str]:
        """For the driver that rank 0 starts."""
        return [
            "cluster=manual",
            f"cluster.rendezvous={self.rendezvous}",
            f"cluster.workers={self.workers}",
            f"cluster.servers={self.servers}",
        ]

    def worker_options(self, timeout_secs: float) -> list[str]:
        """For one process beside this one."""
        options = [f"--rendezvous={self.rendezvous}", f"--timeout-secs={timeout_secs:g}"]
        if self.index is not None:
            options.append(f"--{'rank' if self.role == 'worker' else 'index'}={self.index}")
        return [*options, *([f"--address={self.address}"] if self.address else [])]


class FrontDoor(ABC):
    """The options and variables of one system. `DOORS` in entry.py lists the subclasses."""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Options of its own, with None where they are not given."""
        return

    @classmethod
    @abstractmethod
    def task(cls, role: str, asked: argparse.Namespace, environ: Mapping[str, str]) -> Task | None:
        """What this process is; None where nothing of this system is given. Raises ConfigError where it is wrong.

        `role` is worker or server, by the module that was started, for a system whose options do not say it.
        """
