"""A store inside the driver. It listens at the address in the URI, and each standby process keeps a connection to
it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import SplitResult

from parallax_runner.errors import LaunchError
from parallax_runner.launch.control.listener import Listener, affordable_strangers
from parallax_runner.launch.launchers.manual import own_address, secret
from parallax_runner.launch.launchers.manual.channel import Channel
from parallax_runner.launch.launchers.manual.standby_entry import Entry, signed, verified
from parallax_runner.launch.launchers.manual.stores.store import Store

BACKLOG = 256


class Tcp(Store):
    """An entry exists as long as its process is connected. Each run needs its own address."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(secret.from_environment())
        self._host, self._port = host, port
        self._lock = threading.Lock()
        # A process that connects again may be there twice until the end of its first connection is noticed.
        self._entries: dict[Channel, Entry] = {}
        self._channel: Channel | None = None

    @classmethod
    def open(cls, address: SplitResult, *, is_driver: bool) -> Self:
        """Opens the store. In the driver, raises LaunchError if this machine does not have the address, or if the port
        is taken."""
        store = cls(address.hostname or "", address.port or 0)
        if is_driver:
            store._listen()
        return store

    def own_host(self) -> str | None:
        """Returns the address from which the kernel would send to the driver. The driver need not be running yet."""
        return own_address.towards(self._host, self._port)

    def keep(self, entry: Entry) -> None:
        """Connects to the driver, unless a connection exists. If no driver listens yet, the next call tries again."""
        if self._channel is not None and self._channel.is_open:
            return
        with suppress(OSError, ValueError):
            self._channel = Channel.connect(f"{self._host}:{self._port}", self.secret)
            self._channel.send("entry", content=signed(entry, self.secret).decode())

    def withdraw(self, entry: Entry) -> None:
        """Ends the connection."""
        if self._channel is not None:
            self._channel.close()

    def entries(self) -> list[Entry]:
        """Returns the entries in order of arrival."""
        with self._lock:
            by_id = {entry.id: entry for entry in self._entries.values()}
        return list(by_id.values())

    def _listen(self) -> None:
        try:
            listening = socket.create_server((self._host, self._port), backlog=BACKLOG)
        except OSError as error:
            raise LaunchError(
                f"cluster.rendezvous: cannot listen on {self._host}:{self._port}: {error.strerror}; expected an "
                "address of the driver's machine and a free port"
            ) from error
        Listener(listening, self._serve, name="rendezvous", most_strangers=affordable_strangers())

    def _serve(self, connection: socket.socket, know: Callable[[], None]) -> None:
        with suppress(OSError, ValueError):
            channel = Channel.accept(connection, self.secret)
            know()
            said = channel.receive() or {}
            entry = verified(str(said.get("content")).encode(errors="replace"), self.secret)
            if entry is None:
                return
            with self._lock:
                self._entries[channel] = entry
            try:
                channel.receive()  # a process sends only its entry, so this call returns when the process has exited
            finally:
                with self._lock:
                    del self._entries[channel]
