"""What a store is, and which one an address names."""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self
from urllib.parse import SplitResult

from parallax_runner.config.rendezvous import split_address
from parallax_runner.launch.manual.entry import Entry, verified

log = logging.getLogger(__name__)

# By the scheme of `cluster.rendezvous`.
STORES: Mapping[str, str] = {"file": "folder.Folder", "redis": "redis.Redis", "tcp": "tcp.Tcp"}


class Store(ABC):
    """Has the entries of all processes that stand by. An entry is signed with `secret`, and so says who wrote it."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._not_believed: set[str] = set()

    @classmethod
    @abstractmethod
    def open(cls, address: SplitResult, *, is_driver: bool) -> Self:
        """The driver's end, or that of a process that stands by. Raises LaunchError."""

    @abstractmethod
    def own_host(self) -> str | None:
        """The address of this machine on the way to the store, None where the store does not tell."""

    @abstractmethod
    def keep(self, entry: Entry) -> None:
        """Writes an entry, or writes it again: called every few seconds while the process stands by."""

    @abstractmethod
    def withdraw(self, entry: Entry) -> None:
        """Takes an entry back; it may be gone already."""

    @abstractmethod
    def entries(self) -> list[Entry]:
        """All that are there, in the order in which they came as far as that is known."""

    def believed(self, name: str, content: bytes) -> Entry | None:
        """The entry in `content`; None where somebody without the secret wrote it, which the log says once a `name`."""
        entry = verified(content, self.secret)
        if entry is None and name not in self._not_believed:
            self._not_believed.add(name)
            log.warning("%s is not signed with this rendezvous's secret: it is left alone", name)
        return entry


def open_store(address: str, *, is_driver: bool) -> Store:
    """Raises ConfigError where the address cannot be read, LaunchError where the store cannot be reached."""
    split = split_address(address)
    module, _, name = STORES[split.scheme].partition(".")
    found: type[Store] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return found.open(split, is_driver=is_driver)
