"""What a front door is: another system's way to tell a process which one of a cluster it is."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One process of a cluster: its role and its rank or index, where all meet, and how many they are."""

    role: str
    index: int
    rendezvous: str
    workers: int
    servers: int

    @property
    def starts_driver(self) -> bool:
        """Rank 0 does: these systems have no driver that somebody would start."""
        return self.role == "worker" and self.index == 0


class FrontDoor(ABC):
    """The options and variables of one system. `DOORS` in entry.py lists the subclasses."""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Options of its own, with None where they are not given."""
        return

    @classmethod
    @abstractmethod
    def task(cls, asked: argparse.Namespace, environ: Mapping[str, str]) -> Task | None:
        """What this process is; None where nothing of this system is given. Raises ConfigError where it is wrong."""
