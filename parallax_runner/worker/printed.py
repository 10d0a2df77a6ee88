"""Sends the output of a script in a worker to the worker's log and, line by line, to the driver's terminal."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, TextIO

from parallax_runner.launch.control.client import ControlClient


class Printed(io.TextIOBase):
    """Replaces `sys.stdout` or `sys.stderr` (`name`). The driver prints each line with the worker's rank."""

    def __init__(self, stream: TextIO, name: str, client: ControlClient) -> None:
        self._stream, self._name, self._client = stream, name, client
        self._line = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the log."""
        return self._stream.encoding

    def writable(self) -> bool:
        """Returns True."""
        return True

    @property
    def buffer(self) -> BinaryIO:
        """The log's buffer. Bytes written to it do not reach the driver."""
        return self._stream.buffer

    def reconfigure(self, **options: Any) -> None:
        """Changes how the log is written. The driver still receives each complete line."""
        assert isinstance(self._stream, io.TextIOWrapper)
        self._stream.reconfigure(**options)

    def fileno(self) -> int:
        """Returns the log's file descriptor. Output that a child process writes to it does not reach the driver."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Writes to the log, and sends each complete line to the driver."""
        self._stream.write(text)
        *lines, last = text.split("\n")
        for line in lines:
            self._client.report("printed", stream=self._name, line=_left_of(self._line + line).rstrip("\r"))
            self._line = ""
        # If a progress bar redraws itself without a newline, only its last state is kept.
        self._line = _left_of(self._line + last)
        return len(text)

    def flush(self) -> None:
        """Flushes the log. An incomplete line is not sent to the driver yet."""
        self._stream.flush()

    def finish(self) -> TextIO:
        """If the last line has no newline, sends it to the driver. Returns the stream that this object replaces."""
        if self._line:
            self._client.report("printed", stream=self._name, line=self._line.rstrip("\r"))
            self._line = ""
        return self._stream


def _left_of(line: str) -> str:
    """Returns the part of a line that a terminal would show: the text after the last carriage return."""
    shown = line.rstrip("\r")
    return shown.rpartition("\r")[2] + line[len(shown) :][:1]
