"""The store interface, and the selection of a store by its URI."""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self
from urllib.parse import SplitResult

from parallax_runner.errors import LaunchError
from parallax_runner.launch.launchers.manual.rendezvous import split_address
from parallax_runner.launch.launchers.manual.standby_entry import Entry, verified

log = logging.getLogger(__name__)

# Maps the scheme of `cluster.rendezvous` to the class of its store.
STORES: Mapping[str, str] = {"file": "folder.Folder", "redis": "redis.Redis", "tcp": "tcp.Tcp"}


# The bounds of what is read from a store, because strangers may be able to write to it.
MOST_ENTRIES = 10_000
MOST_ENTRY_BYTES = 16 << 10
MOST_NAMED = 20


class StoreLostError(LaunchError):
    """The store has been opened, but does not answer now. It may answer again, for example after a restart."""


class Store(ABC):
    """Stores the entries of all standby processes. The signature of an entry proves that its writer knows `secret`."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._not_believed: set[str] = set()

    @classmethod
    @abstractmethod
    def open(cls, address: SplitResult, *, is_driver: bool) -> Self:
        """Opens the store in the driver or in a standby process. Raises LaunchError if the store cannot be used."""

    @abstractmethod
    def own_host(self) -> str | None:
        """Returns this machine's address on the route to the store, or None if the store has no address."""

    @abstractmethod
    def keep(self, entry: Entry) -> None:
        """Writes or rewrites an entry. Called every few seconds while the process stands by."""

    @abstractmethod
    def withdraw(self, entry: Entry) -> None:
        """Removes an entry if it still exists."""

    @abstractmethod
    def entries(self) -> list[Entry]:
        """Returns all entries, in order of arrival if the store records this order."""

    def believed(self, name: str, content: bytes) -> Entry | None:
        """Returns the entry in `content`, or None if its writer did not know the secret. Logs a rejected entry once per
        `name`."""
        entry = verified(content, self.secret)
        if entry is None:
            self.disbelieve(name, "is not signed with this rendezvous's secret")
        return entry

    def disbelieve(self, name: str, fault: str) -> None:
        """Logs once per `name` that an entry is ignored. Only the first MOST_NAMED entries are named, since whoever can
        write to the store can write any number of entries."""
        if name in self._not_believed or len(self._not_believed) > MOST_NAMED:
            return
        self._not_believed.add(name)
        if len(self._not_believed) > MOST_NAMED:
            log.warning("more than %d entries are ignored; the others are not named", MOST_NAMED)
            return
        shown = name if name.isprintable() else name.encode("unicode_escape").decode()
        log.warning("%s %s: it is ignored", shown, fault)

    def check_number(self, count: int, where: str) -> None:
        """Raises LaunchError if the store has more than MOST_ENTRIES entries."""
        if count > MOST_ENTRIES:
            raise LaunchError(
                f"cluster.rendezvous: {where} contains more than {MOST_ENTRIES} entries; expected one for each worker "
                "and server: choose a new folder or prefix for each run, to which nobody else writes"
            )


def open_store(address: str, *, is_driver: bool) -> Store:
    """Opens the store with the URI `address`. Raises ConfigError if the URI is invalid, and LaunchError if the store
    cannot be reached."""
    split = split_address(address)
    module, _, name = STORES[split.scheme].partition(".")
    found: type[Store] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return found.open(split, is_driver=is_driver)
