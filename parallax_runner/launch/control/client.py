"""The child's end of the control connection, over which a worker or server communicates with the driver."""

import faulthandler
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import psutil

from parallax_runner.collectives.backend import Awaited
from parallax_runner.errors import ErrorParts, LaunchError
from parallax_runner.launch import on_host
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.activity import STARTING, Activity
from parallax_runner.launch.watch.whereabouts import main_thread_place, python_in_graph

CONNECT_TIMEOUT_SECS = 30.0
HEARD_TIMEOUT_SECS = 5.0
DRIVER_SILENT_SECS = 60.0
LOOPBACK = "127.0.0.1"
ALIVE_SECS = 2.0
STACKS_SECS = 24.0
# A process that is still running this long after its last message writes its stacks. The driver kills it after 10 s.
LINGERS_SECS = 5.0
STDERR = 2


def rank_from_environ() -> int:
    """Returns this worker's rank, which its launcher sets. Exits if the launcher has set no rank."""
    variable = os.environ.get(wire.RANK_VARIABLE)
    if variable is None:
        return 0  # No driver started this process, so `ControlClient.connect` will raise LaunchError.
    rank = os.environ.get(variable, "")
    if not rank.isdecimal():
        sys.exit(f"parallax_runner: {variable}={rank!r}: expected this worker's rank, which the launcher sets")
    return int(rank)


class ControlClient:
    """The connection of one child process to the driver. If the driver exits before `done` or `fail` is called, this
    process exits at once.

    A thread sends the driver a heartbeat every few seconds. The heartbeat contains what this process is `doing` and the
    last `step` that it finished. The child's code sets both attributes, at negligible cost. The heartbeat also contains
    what `awaited` returns: the ranks for which an exchange of this process has waited for a long time.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._cluster: dict[str, list[str]] = {}
        self._cluster_known = threading.Event()
        self._store: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._heard = threading.Event()
        self._leaving = False
        self._last_step_known = threading.Event()
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._states: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._all_left = threading.Event()
        self._proven = threading.Event()
        # The messages that only report that something has happened.
        self._awaited = {wire.PROVEN: self._proven, wire.ALL_LEFT: self._all_left, wire.HEARD: self._heard}
        self.stop_requested = threading.Event()
        self.last_step: int | None = None
        self.step: int | None = None
        self._doing = (STARTING, time.monotonic())
        self.awaited: Callable[[], Awaited] = Awaited

    @classmethod
    def connect(cls, role: str, index: int) -> Self:
        """Connects to the driver that started this process and sends a hello. Raises LaunchError if there is no driver
        or the driver cannot be reached."""
        address, secret = os.environ.get(wire.CONTROL_ADDRESS), os.environ.get(wire.CONTROL_SECRET)
        if not address or not secret:
            raise LaunchError(
                f"{wire.CONTROL_ADDRESS} is not set: only the driver (`python -m parallax_runner`) can start a {role}"
            )
        host, port = address.rsplit(":", 1)
        try:
            connection = socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_SECS)
        except (OSError, ValueError) as error:
            raise LaunchError(f"{role} {index} cannot reach its driver at {address}: {error}") from error
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if connection.getpeername()[0] != LOOPBACK:
            # If the driver's machine loses power, it does not close the connection. In this case, this timeout makes
            # this process exit.
            silent_secs = float(os.environ.get(wire.SILENT_SECS, DRIVER_SILENT_SECS))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * silent_secs))
        # A process that is forked from this process, such as a data loader, must not keep the connection open after
        # this process dies.
        os.register_at_fork(after_in_child=lambda: _forget(connection))
        client = cls(connection)
        about = {"pid": os.getpid(), "host": socket.gethostname(), "memory_kills": on_host.memory_kills()}
        client._send(wire.HELLO, role=role, index=index, secret=secret, **about)
        threading.Thread(target=client._listen, name="control", daemon=True).start()
        threading.Thread(target=client._live, name="alive", daemon=True).start()
        return client

    @property
    def own_address(self) -> str:
        """The address that this host uses to reach the driver. The other hosts of the run reach this host at this
        address."""
        name = self._connection.getsockname()
        return str(name[0]) if isinstance(name, tuple) else LOOPBACK

    @property
    def doing(self) -> Activity:
        """What this process is doing. If another process dies, the error message tells it."""
        return self._doing[0]

    @doing.setter
    def doing(self, what: Activity) -> None:
        if what != self._doing[0]:
            self._doing = (what, time.monotonic())

    def exchange_address(self, address: str) -> dict[str, list[str]]:
        """Publishes this process's `host:port`. Blocks until all processes have published their addresses, then returns
        all addresses by role, ordered by index."""
        self._send(wire.ADDRESS, address=address)
        self._cluster_known.wait()
        return self._cluster

    def publish_store(self, address: str) -> None:
        """Sends the `host:port` of the store to all workers, including rank 0 itself. The workers find each other
        through the store."""
        self._send(wire.STORE, address=address)

    def store_address(self) -> str:
        """Blocks until rank 0 has published the store's address, then returns it. Call this method only once."""
        return self._store.get()

    def show_installation(self, versions: dict[str, str]) -> None:
        """Sends what is installed on this host (launch/installation.py) to the driver, without waiting for the answer.
        If the driver has something else, it terminates all processes."""
        self._send(wire.INSTALLATION, versions=versions)

    def prove(self, claim: dict[str, Any]) -> None:
        """Sends this process's claim (launch/proof.py) to the driver, without waiting for the answer."""
        self._send(wire.PROOF, **claim)

    def wait_until_proven(self) -> None:
        """Blocks until the claims of all processes of the launch have been verified against the plan. If a claim does
        not match, the driver terminates all processes."""
        self._proven.wait()

    def port_taken(self, address: str) -> None:
        """Reports that another program has taken `address`. The driver then terminates all processes and restarts them
        with new ports."""
        self._say_last(wire.PORT_TAKEN, address=address)

    def report(self, kind: str, **fields: Any) -> None:
        """Sends a report to the driver. This method is thread-safe, and returns as soon as the kernel has accepted the
        message."""
        if kind in wire.RESERVED_KINDS:
            raise ValueError(f"report kind {kind!r} is reserved for the protocol")
        self._send(kind, **fields)

    def fail(
        self,
        error: str,
        traceback: str,
        *,
        parts: ErrorParts | None = None,
        recurs: bool = False,
        exit_status: int | None = None,
    ) -> None:
        """Sends the last message of a process that fails. `error` is one line such as "ValueError: …".

        `parts` are the parts of that line, or None if it is not the message of a ParallaxError. `recurs` means that the
        error, such as a full disk, would occur again in a restarted run. `exit_status` is the exit status for the run,
        or None for the usual exit status.
        """
        fields = {"error": error, "traceback": traceback, "recurs": recurs, "exit_status": exit_status}
        self._say_last(wire.FAIL, parts=None if parts is None else parts.as_json(), **fields, **self._standing())

    def done(self, **fields: Any) -> None:
        """Sends the last message of a process that has finished its work. Waits until the driver has received it, for
        at most 5 s."""
        self._say_last(wire.DONE, **fields)

    def announce_last_step(self, step: int) -> None:
        """Sends the chief's answer to a stop request: all workers stop after `step`. Returns when all workers have
        confirmed this step."""
        self._send(wire.LAST_STEP, step=step)
        self._last_step_known.wait()

    def leave(self, step: int) -> None:
        """Reports that this worker takes part in no step after `step`. Blocks until every worker has sent such a
        report."""
        self._send(wire.LEAVE, step=step)
        self._all_left.wait()

    def ask_epoch(self, step: int) -> Callable[[], dict[str, Any] | None]:
        """Asks the driver for the state of the epoch of `fit` after `step` steps. Returns a function that waits for the
        answer. The answer arrives when all workers have reported this step."""
        self._send(wire.SAVING, step=step)
        return self._states.get

    def next_order(self) -> dict[str, Any] | None:
        """Waits for the driver's next command and returns it. A command specifies how all workers continue. Returns
        None if the driver asks the workers to exit."""
        return self._orders.get()

    def wait_for_stop(self) -> None:
        """Blocks until the driver asks this process to exit. The driver asks a server to exit when all workers are
        done."""
        self.stop_requested.wait()

    def _say_last(self, kind: str, **fields: Any) -> None:
        self._leaving = True
        self._send(kind, **fields)
        # If a socket with unread input is closed, the kernel resets the connection and can drop the message. Therefore,
        # this process waits for the driver's answer first.
        self._heard.wait(HEARD_TIMEOUT_SECS)

    def _send(self, kind: str, **fields: Any) -> None:
        line = wire.encode(kind, fields)
        try:
            with self._sending:
                self._connection.sendall(line)
        except OSError:
            # The driver has exited. The listening thread also notices this, and terminates the process.
            return

    def _standing(self) -> dict[str, Any]:
        doing, since_secs = self._doing
        doing_secs = time.monotonic() - since_secs
        return {
            "doing": doing,
            "doing_secs": doing_secs,
            "step": self.step,
            "awaited": self.awaited().fields,
            "peak_bytes": on_host.peak_bytes(),
        }

    def _live(self) -> None:
        every_secs = float(os.environ.get(wire.ALIVE_SECS, ALIVE_SECS))
        stacks_secs = float(os.environ.get(wire.STACKS_SECS, STACKS_SECS))
        while not self._leaving:
            time.sleep(every_secs)
            self._send(wire.ALIVE, **self._standing())
            # If C code holds the GIL, this thread cannot restart the timer below. A C thread of faulthandler then
            # writes the stacks. TensorFlow's import also holds the GIL, so the timer is not used while the process
            # starts.
            if self.doing != STARTING:
                faulthandler.dump_traceback_later(stacks_secs, file=STDERR)
        # If a thread or an exit handler of the user's code keeps this process alive, the stacks in the log identify it.
        faulthandler.dump_traceback_later(LINGERS_SECS, file=STDERR)

    def _listen(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    self._take(*wire.decode(line))
        except (OSError, ValueError) as error:
            print(f"control connection: {error}", file=sys.stderr, flush=True)
        if not self._leaving:
            # The message is written with a single write, because other threads may be printing. The process exits with
            # _exit, because other threads may never finish.
            os.write(2, b"the driver is gone (control connection closed): this process exits\n")
            _kill_children()
            os._exit(wire.CUT_OFF_STATUS)
        self._heard.set()

    def _take(self, kind: str, fields: dict[str, Any]) -> None:
        if kind in self._awaited:
            self._awaited[kind].set()
        elif kind == wire.CLUSTER:
            self._cluster = fields["addresses"]
            self._cluster_known.set()
        elif kind == wire.STORE:
            self._store.put(str(fields["address"]))
        elif kind == wire.LAST_STEP:
            self.last_step = int(fields["step"])
            self._last_step_known.set()
            self._send(wire.LAST_STEP_KNOWN)
        elif kind == wire.STOP:
            self.stop_requested.set()
            self._orders.put(None)
        elif kind == wire.ORDER:
            self._orders.put(fields)
        elif kind == wire.STATE:
            self._states.put(fields["state"])
        elif kind == wire.WHERE:
            self._tell_where(with_stacks=bool(fields.get("stacks")))

    def _tell_where(self, *, with_stacks: bool) -> None:
        """Tells the driver what this process is executing. With `with_stacks`, first writes the Python stacks to the
        process's log."""
        place, inside = main_thread_place(), python_in_graph()
        if with_stacks:
            os.write(STDERR, b"the Python stacks of this process, which the driver requested:\n")
            faulthandler.dump_traceback(STDERR)
        self._send(wire.STANDS, where=place, inside=inside, **self._standing())


def _forget(connection: socket.socket) -> None:
    # The descriptor is closed directly: close() on the socket would wait until the listening thread closes its file
    # object, and a forked process has no such thread.
    descriptor = connection.detach()
    if descriptor >= 0:
        os.close(descriptor)


def _kill_children() -> None:
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.Error:
            # The child process has already exited.
            continue
