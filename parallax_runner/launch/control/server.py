"""The driver's end of the control connections. It tracks which child processes are connected, what they send, and when
they disconnect."""

import hmac
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from parallax_runner.launch.control import wire
from parallax_runner.launch.control.lines import Lines
from parallax_runner.launch.control.listener import Listener, shut
from parallax_runner.launch.control.wire import Message

log = logging.getLogger(__name__)

HELLO_TIMEOUT_SECS = 10.0
MAX_HELLO_BYTES = 4096
# A report can be long: it contains a loss and a time for each step since the last report.
MAX_LINE_BYTES = 64 * 2**20
# The maximum number of connections that have not sent a hello, in addition to one per child. Above this limit, the
# oldest such connection is closed. Children are not affected, because they send their hello at once.
MAX_STRANGERS = 16

Member = tuple[str, int]


class ControlServer:
    """Accepts one connection from each expected child process. Separate threads read the connections, so arrival times
    are exact even while the driver does other work.

    `address` and `secret` are passed to the children in their environment. `next_message` returns messages in order of
    arrival. When a connection ends, a message of kind "closed" follows all other messages from that connection.
    """

    def __init__(self, *, workers: int, servers: int, host: str) -> None:
        self.secret = secrets.token_hex(16)
        self._expected = {("worker", i) for i in range(workers)} | {("server", i) for i in range(servers)}
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._connections: dict[Member, socket.socket] = {}
        self._addresses: dict[Member, str] = {}
        self._store: str | None = None
        self._stopping: set[str] = set()
        self._left: set[Member] = set()
        self._last_step: int | None = None
        self._chief: Member | None = None
        self._without_last_step: set[Member] = set()
        most_strangers = len(self._expected) + MAX_STRANGERS
        listening = socket.create_server((host, 0), backlog=most_strangers)
        self.address = f"{host}:{listening.getsockname()[1]}"
        self._listener = Listener(listening, self._serve, name="control", most_strangers=most_strangers)

    def next_message(self, timeout_secs: float) -> Message | None:
        """Returns the next message, or None if no message arrived in time."""
        try:
            return self._messages.get(timeout=timeout_secs)
        except queue.Empty:
            return None

    def has_messages(self) -> bool:
        """Returns whether messages have arrived that `next_message` has not returned yet."""
        return not self._messages.empty()

    def stop(self, role: str) -> None:
        """Asks all children with this role to exit on their own, including children that connect later."""
        with self._lock:
            self._stopping.add(role)
            members = [member for member in self._connections if member[0] == role]
        for member in members:
            self._send(member, wire.STOP)

    def order(self, fields: Mapping[str, Any]) -> None:
        """Sends all workers a command that specifies how they continue. All workers receive commands and stop requests
        in the same order."""
        with self._lock:
            members = [member for member in self._connections if member[0] == "worker"]
        for member in members:
            self._send(member, wire.ORDER, **fields)

    def answer(self, answer: wire.Answer) -> None:
        """Sends one worker the answer to its question."""
        self._send(("worker", answer.rank), answer.kind, **answer.fields)

    def tell_proven(self) -> None:
        """Informs all children that the launch matches the plan, so training can begin."""
        with self._lock:
            members = list(self._connections)
        for member in members:
            self._send(member, wire.PROVEN)

    def ask_where(self, *, stacks: bool = False) -> None:
        """Asks every connected child what it is executing. The answers are messages of kind "stands". With `stacks`,
        each child writes its Python stacks to its log before it answers."""
        with self._lock:
            members = list(self._connections)
        for member in members:
            self._send(member, wire.WHERE, stacks=stacks)

    def close(self) -> None:
        """Closes all connections. A child that is still running exits when it notices that its connection is closed."""
        self._listener.close()
        with self._lock:
            connections = list(self._connections.values())
        for one in connections:
            shut(one)

    def _serve(self, connection: socket.socket, know: Callable[[], None]) -> None:
        lines = Lines(connection)
        hello = self._greet(connection, lines)
        know()
        if hello is None:
            return
        if hello.role in self._stopping:
            self._send((hello.role, hello.index), wire.STOP)
        if hello.role == "worker" and self._store is not None:
            self._send((hello.role, hello.index), wire.STORE, address=self._store)
        if hello.role == "worker" and self._last_step is not None:
            self._send((hello.role, hello.index), wire.LAST_STEP, step=self._last_step)
        try:
            while line := lines.next(MAX_LINE_BYTES):
                kind, fields = wire.decode(line)
                self._take(Message(hello.role, hello.index, hello.host, kind, fields, time.monotonic()))
        except OSError as error:
            log.warning("control connection to %s %d broke: %s", hello.role, hello.index, error)
        except ValueError as error:
            fail = {"error": f"sent the driver an invalid message: {error}"}
            self._messages.put(Message(hello.role, hello.index, hello.host, wire.FAIL, fail, time.monotonic()))
        with self._lock:
            del self._connections[hello.role, hello.index]
        self._note_known((hello.role, hello.index))
        self._messages.put(Message(hello.role, hello.index, hello.host, wire.CLOSED, {}, time.monotonic()))

    def _greet(self, connection: socket.socket, lines: Lines) -> Message | None:
        try:
            kind, fields = wire.decode(lines.next(MAX_HELLO_BYTES, HELLO_TIMEOUT_SECS))
            given = str(fields.pop("secret", "")).encode()
        except (OSError, ValueError):
            return None
        if not hmac.compare_digest(given, self.secret.encode()) or kind != wire.HELLO:
            return None
        member = (fields.pop("role"), fields.pop("index"))
        with self._lock:
            if member not in self._expected or member in self._connections:
                if member[0] in ("worker", "server"):
                    self._messages.put(Message(*member, fields["host"], wire.SURPLUS, fields, time.monotonic()))
                return None
            self._connections[member] = connection
            hello = Message(*member, fields["host"], kind, fields, time.monotonic())
            # Inside the lock, so a second process with the same role and rank is always reported after this one.
            self._messages.put(hello)
        return hello

    def _take(self, message: Message) -> None:
        member = (message.role, message.index)
        if message.kind == wire.ADDRESS:
            self._publish(member, str(message.fields["address"]))
            return
        if message.kind == wire.STORE:
            self._tell_store(str(message.fields["address"]))
            return
        if message.kind == wire.LAST_STEP:
            self._tell_last_step(int(message.fields["step"]), chief=member)
            return
        if message.kind == wire.LAST_STEP_KNOWN:
            self._note_known(member)
            return
        self._messages.put(message)
        if message.kind == wire.LEAVE:
            self._let_leave(member)
        if message.kind in (wire.DONE, wire.FAIL, wire.PORT_TAKEN):
            self._send(member, wire.HEARD)

    def _tell_store(self, address: str) -> None:
        """Sends the store's address to the connected workers. Workers that connect later receive the address after
        their hello."""
        with self._lock:
            self._store = address
            members = [member for member in self._connections if member[0] == "worker"]
        for member in members:
            self._send(member, wire.STORE, address=address)

    def _tell_last_step(self, step: int, *, chief: Member) -> None:
        with self._lock:
            others = {member for member in self._connections if member[0] == "worker"} - {chief}
            self._last_step, self._chief, self._without_last_step = step, chief, set(others)
        for member in others:
            self._send(member, wire.LAST_STEP, step=step)
        if not others:
            self._send(chief, wire.LAST_STEP, step=step)

    def _note_known(self, member: Member) -> None:
        """Sends the last step back to the chief once all other workers have confirmed it or disconnected. From then on,
        no worker begins a later step."""
        with self._lock:
            was_waited_for = member in self._without_last_step
            self._without_last_step.discard(member)
            chief = self._chief if was_waited_for and not self._without_last_step else None
        if chief is not None:
            self._send(chief, wire.LAST_STEP, step=self._last_step)

    def _let_leave(self, member: Member) -> None:
        with self._lock:
            self._left.add(member)
            if self._left != {one for one in self._expected if one[0] == "worker"}:
                return
        for one in sorted(self._left):
            self._send(one, wire.ALL_LEFT)

    def _publish(self, member: Member, address: str) -> None:
        with self._lock:
            self._addresses[member] = address
            if self._addresses.keys() != self._expected:
                return
            ordered = sorted(self._addresses)
        addresses = {role: [self._addresses[m] for m in ordered if m[0] == role] for role in ("worker", "server")}
        for one in ordered:
            self._send(one, wire.CLUSTER, addresses=addresses)

    def _send(self, member: Member, kind: str, **fields: Any) -> None:
        with self._lock:
            connection = self._connections.get(member)
            if connection is None:
                return
            try:
                connection.sendall(wire.encode(kind, fields))
            except OSError as error:
                # The thread that reads this connection also notices its end, and reports it after the earlier messages.
                log.debug("cannot send %s %d the message %s: %s", *member, kind, error)
