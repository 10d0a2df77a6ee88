"""A connection between two processes that have proven to each other that they know the secret. Each line is signed.

The lines are not encrypted (see docs/security.md).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import select
import socket
from typing import Any, Self

from parallax_runner.launch.control.lines import Lines

HANDSHAKE_SECS = 10.0
MOST_BYTES = 1 << 20
MOST_OF_HANDSHAKE_BYTES = 512
# If the other machine leaves data unacknowledged for SILENT_SECS, it is treated as gone. After ASK_AFTER_SECS of
# silence, the kernel sends a keepalive.
SILENT_SECS = 30
ASK_AFTER_SECS = 10


class Channel:
    """One end of a connection. `name` is part of each signature, so that a line that is sent back to its sender is
    rejected."""

    def __init__(self, connection: socket.socket, lines: Lines, key: bytes, name: str) -> None:
        self._connection = connection
        self._lines = lines
        self._key = key
        self._name = name
        self._sent = self._received = 0

    @classmethod
    def connect(cls, address: str, secret: bytes, timeout_secs: float = HANDSHAKE_SECS) -> Self:
        """Connects to an address. Raises OSError if no process listens there, and ValueError if the other end does not
        know the secret."""
        host, _, port = address.rpartition(":")
        return cls._prove(socket.create_connection((host, int(port)), timeout=timeout_secs), secret, "caller", "callee")

    @classmethod
    def accept(cls, connection: socket.socket, secret: bytes) -> Self:
        """Creates a channel from an accepted connection. Raises the same errors as `connect`."""
        return cls._prove(connection, secret, "callee", "caller")

    @classmethod
    def _prove(cls, connection: socket.socket, secret: bytes, own: str, other: str) -> Self:
        """Makes both ends prove that they know the secret. Each end sends a random number and signs both numbers, which
        prevents replays."""
        try:
            _watch(connection)
            lines = Lines(connection)
            nonce = secrets.token_hex(16)
            connection.sendall(nonce.encode() + b"\n")
            others = _line(lines)
            numbers = f"{nonce}{others}" if own == "caller" else f"{others}{nonce}"
            connection.sendall(_sign(secret, own + numbers).encode() + b"\n")
            if not hmac.compare_digest(_line(lines).encode(), _sign(secret, other + numbers).encode()):
                raise ValueError("the other end has a different secret")
        except BaseException:
            connection.close()
            raise
        return cls(connection, lines, _sign(secret, "session" + numbers).encode(), own)

    @property
    def own_host(self) -> str:
        """This machine's address on the route to the other end."""
        return str(self._connection.getsockname()[0])

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a signed line. Raises OSError if the other end is gone."""
        body = json.dumps({"kind": kind, **fields})
        signature = _sign(self._key, f"{self._name}{self._sent}{body}")
        self._sent += 1
        self._connection.sendall(json.dumps([signature, body]).encode() + b"\n")

    def receive(self, timeout_secs: float | None = None) -> dict[str, Any] | None:
        """Returns the next message with its `kind`, or None if the other end is gone. Raises ValueError if the
        signature is wrong, TimeoutError after `timeout_secs`, and OSError if the connection is broken."""
        line = self._lines.next(MOST_BYTES, timeout_secs)
        if not line:
            return None
        signature, body = _signature_and_body(line)
        other = "callee" if self._name == "caller" else "caller"
        if not hmac.compare_digest(signature.encode(errors="replace"), self._expected(other, body)):
            raise ValueError("received a line that the other end did not sign")
        self._received += 1
        fields = json.loads(body)
        if not isinstance(fields, dict):
            raise ValueError("received a line without fields")
        return fields

    def _expected(self, other: str, body: str) -> bytes:
        """Returns the signature of the next line of the other end."""
        return _sign(self._key, f"{other}{self._received}{body}").encode()

    @property
    def is_open(self) -> bool:
        """Whether the other end is still connected, as far as this machine knows. Use this property only while the
        other end sends nothing."""
        try:
            self._connection.setblocking(False)
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            if self._connection.fileno() >= 0:
                self._connection.setblocking(True)

    @property
    def has_input(self) -> bool:
        """Whether the other end has sent something that was not received yet, or is gone."""
        waiting = select.poll()  # select.select accepts no descriptor above 1023
        waiting.register(self._connection, select.POLLIN)
        return bool(waiting.poll(0))

    def close(self) -> None:
        """Closes the connection. The other end notices this at once."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self._connection.close()


def _line(lines: Lines) -> str:
    line = lines.next(MOST_OF_HANDSHAKE_BYTES, HANDSHAKE_SECS)
    if not line:
        raise ValueError("the other end closed the connection: it has a different secret, or is another program")
    return line.decode().strip()


def _signature_and_body(line: bytes) -> tuple[str, str]:
    """Returns both parts of a line. Raises ValueError if it has other parts, because whoever is on the network between
    the two ends can change a line."""
    try:
        parts = json.loads(line)
    except RecursionError as error:
        raise ValueError("received a line that is nested too deeply") from error
    if not isinstance(parts, list) or [type(part) for part in parts] != [str, str]:
        raise ValueError("received a line that is not a signature and a body")
    return parts[0], parts[1]


def _sign(key: bytes, said: str) -> str:
    return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()


def _watch(connection: socket.socket) -> None:
    """Sets timeouts that end the connection if the other machine loses power and cannot close it."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ASK_AFTER_SECS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_AFTER_SECS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_SECS)
