"""A standby process for a worker or server, started by the user or a scheduler. It waits for a driver and runs that
driver's commands, once or several times. It exits when its driver exits."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from parallax_runner.errors import ConfigError, Setting
from parallax_runner.launch import guard
from parallax_runner.launch.control.listener import Listener, affordable_strangers
from parallax_runner.launch.launchers.manual import own_address
from parallax_runner.launch.launchers.manual.channel import Channel
from parallax_runner.launch.launchers.manual.standby_entry import Entry
from parallax_runner.launch.launchers.manual.stores.store import Store, open_store
from parallax_runner.launch.process_tree import end_family

log = logging.getLogger(__name__)

KEEP_SECS = 5.0
POLL_SECS = 0.1
BACKLOG = 256
DEFAULT_TIMEOUT_SECS = 600.0
# This variable is in the environment of every process that this standby process starts, so that all of their forked
# processes can be found.
MARK = "PARALLAX_STANDS_BY"
# The exit status that a shell shows for a program ended by SIGTERM.
TERMINATED = 128 + signal.SIGTERM


class StandBy:
    """The state of this standby process. At most one driver claims it at a time, and it runs at most one worker or
    server."""

    def __init__(self, store: Store, listening: socket.socket, entry: Entry) -> None:
        self.entry = entry
        self.was_claimed = threading.Event()
        self.over = threading.Event()
        self.exit_status = 1
        self._store, self._listening = store, listening
        self._lock = threading.Lock()
        self._run: str | None = None
        self._token = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._driver: Channel | None = None
        # The number of children that run, or of whose end the driver has not been told yet.
        self._serving = 0

    def listen(self) -> None:
        """Starts serving drivers, until the process exits."""
        Listener(self._listening, self._serve, name="driver", most_strangers=affordable_strangers())

    def keep_entry(self) -> None:
        """Writes the entry every few seconds until the process exits."""
        while not self.over.is_set():
            try:
                self._store.keep(self.entry)
            except Exception as error:  # a store's library may raise anything; the next attempt may succeed
                log.warning("cannot write to cluster.rendezvous: %s", error)
            self.over.wait(KEEP_SECS)

    def end_child(self) -> None:
        """Terminates the worker or server that runs here."""
        child = self._child
        if child is not None and child.poll() is None:
            end_family([child], self.entry.id)

    def leave(self, secs: float) -> None:
        """Tells the driver that this process must end within `secs` seconds, and waits until the driver has ended the
        worker or server that runs here."""
        driver = self._driver
        if driver is None or self._serving == 0:
            return
        with suppress(OSError):
            driver.send("leaving", secs=secs)
        deadline = time.monotonic() + secs
        while self._serving and time.monotonic() < deadline:
            if self.over.wait(POLL_SECS):
                return

    def _serve(self, connection: socket.socket, know: Callable[[], None]) -> None:
        with suppress(OSError, ValueError):
            channel = Channel.accept(connection, self._store.secret)
            know()
            said = channel.receive() or {}
            if said.get("kind") == "claim":
                self._be_claimed(channel, str(said["run"]))
            elif said.get("kind") == "start":
                self._start(channel, said)

    def _be_claimed(self, channel: Channel, run: str) -> None:
        with self._lock:
            if self._run is not None:
                channel.send("busy", run=self._run)
                return
            self._run, self._token = run, uuid.uuid4().hex
        channel.send("claimed", id=self.entry.id, token=self._token)
        self._driver = channel
        self.was_claimed.set()
        log.info("claimed by the driver of %s", run)
        try:
            said = channel.receive()
        except (OSError, ValueError):
            said = None
        if said is not None and said["kind"] == "release":
            with self._lock:
                self._run = None
            self.was_claimed.clear()
            self._driver = None
            return
        log.info("the driver of %s has exited", run)
        self.end_child()
        self.over.set()

    def _start(self, channel: Channel, said: dict[str, Any]) -> None:
        if said["token"] != self._token:
            channel.send("refused", reason="another driver has claimed this process")
            return
        self.end_child()  # Terminates the child of an earlier attempt, which the driver has already abandoned.
        try:
            child = self._child = _spawn(said["argv"], {**said["env"], MARK: self.entry.id}, said["cwd"])
        except OSError as error:
            channel.send("refused", reason=f"{error.strerror}: {error.filename}: all hosts need the same folders")
            return
        with self._lock:
            self._serving += 1
        try:
            self._watch(channel, child)
        finally:
            with self._lock:
                self._serving -= 1

    def _watch(self, channel: Channel, child: subprocess.Popen[bytes]) -> None:
        """Waits until a child has ended, or the driver has given it up, and tells the driver."""
        channel.send("started", pid=child.pid)
        # The kernel kills the child when this thread ends, so the thread must not end first.
        while child.poll() is None and channel.is_open:
            time.sleep(POLL_SECS)
        self.end_child()
        self.exit_status = child.wait()
        channel.send("exited", exit_status=self.exit_status)


def _spawn(argv: Sequence[str], env: dict[str, str], cwd: str) -> subprocess.Popen[bytes]:
    """Starts a command. Raises OSError if this host lacks the folder or the program."""
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(int(signal.SIGKILL)), *argv]
    return subprocess.Popen(guarded, env=os.environ | env, cwd=cwd, stdin=subprocess.DEVNULL, start_new_session=True)


def stand_by(
    role: str,
    rendezvous: str,
    index: int | None,
    *,
    address: str | None,
    timeout_secs: float,
    leave_secs: float = 0.0,
) -> int:
    """Runs a driver's commands and returns the exit status of the last worker or server, or 1 if there was none.

    `address` is the address at which the driver and the other processes reach this machine. The default is this
    machine's address on the route to the store. After SIGTERM, the driver has `leave_secs` to save a checkpoint, and
    after a second SIGTERM, none. Raises ConfigError or LaunchError if the rendezvous cannot be used.
    """
    if index is not None and index < 0:
        option = "--rank" if role == "worker" else "--index"
        raise ConfigError(f"expected a number from 0, or no {option} to let the driver choose").about(
            Setting.of(option, index)
        )
    logging.basicConfig(level=logging.INFO, format=f"parallax_runner.{role}: %(message)s")
    store = open_store(rendezvous, is_driver=False)
    host = address or store.own_host() or own_address.on_the_way_out()
    listening = socket.create_server((host, 0), backlog=BACKLOG)
    entry = Entry(
        id=uuid.uuid4().hex,
        role=role,
        index=index,
        address=f"{host}:{listening.getsockname()[1]}",
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    waiting = StandBy(store, listening, entry)

    is_leaving = threading.Event()

    def terminate(number: int, _: object) -> None:
        waiting.exit_status = TERMINATED
        if number == signal.SIGTERM and leave_secs > 0 and not is_leaving.is_set():
            is_leaving.set()
            return
        waiting.over.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, terminate)
    waiting.listen()
    keeping = threading.Thread(target=waiting.keep_entry, name="entry", daemon=True)
    keeping.start()
    log.info("%s is standing by at %s", entry, rendezvous)
    deadline = time.monotonic() + timeout_secs
    try:
        while not waiting.over.wait(POLL_SECS):
            if is_leaving.is_set():
                waiting.leave(leave_secs)
                return TERMINATED
            if waiting.was_claimed.is_set():
                deadline = time.monotonic() + timeout_secs
            elif time.monotonic() > deadline:
                log.error(
                    "no driver has claimed this process at %s within %g s (--timeout-secs)", rendezvous, timeout_secs
                )
                return 1
    finally:
        waiting.end_child()
        waiting.over.set()
        keeping.join(KEEP_SECS)  # otherwise, this thread could write the entry again after it is withdrawn
        with suppress(Exception):  # The store may no longer exist.
            store.withdraw(entry)
    return waiting.exit_status if waiting.exit_status >= 0 else 128 - waiting.exit_status
