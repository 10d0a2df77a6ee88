"""Reads lines from an untrusted connection. Each line has a maximum length and can have a deadline."""

import socket
import time

CHUNK_BYTES = 65536


class Lines:
    """The lines of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()

    def next(self, most_bytes: int, timeout_secs: float | None = None) -> bytes:
        """Returns the next line, including its newline, or empty bytes if the connection has ended.

        `timeout_secs` applies to the whole line. Raises ValueError if the line is longer than `most_bytes`,
        TimeoutError if it does not arrive in time, and OSError if the connection is broken.
        """
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        looked_at = 0
        while (end := self._received.find(b"\n", looked_at)) < 0:
            looked_at = len(self._received)
            if looked_at > most_bytes:
                raise ValueError(f"a line of more than {most_bytes} bytes")
            left_secs = None if deadline is None else deadline - time.monotonic()
            if left_secs is not None and left_secs <= 0:
                raise TimeoutError(f"no line within {timeout_secs:g} s")
            self._connection.settimeout(left_secs)
            chunk = self._connection.recv(CHUNK_BYTES)
            if not chunk:
                return b""
            self._received += chunk
        if end >= most_bytes:
            raise ValueError(f"a line of more than {most_bytes} bytes")
        line = bytes(self._received[: end + 1])
        del self._received[: end + 1]
        self._connection.settimeout(None)
        return line
