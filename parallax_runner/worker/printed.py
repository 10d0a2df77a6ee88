"""What a script prints in a worker: into the worker's log, and line by line to the driver's terminal."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, TextIO

from parallax_runner.launch.control.client import ControlClient


class Printed(io.TextIOBase):
    """Stands for `sys.stdout` or `sys.stderr` (`name`); the driver prints what it is told, with the worker's rank."""

    def __init__(self, stream: TextIO, name: str, client: ControlClient) -> None:
        self._stream, self._name, self._client = stream, name, client
        self._line = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the log."""
        return self._stream.encoding

    def writable(self) -> bool:
        """It is."""
        return True

    @property
    def buffer(self) -> BinaryIO:
        """The log's: bytes that are written there go no further."""
        return self._stream.buffer

    def reconfigure(self, **options: Any) -> None:
        """Changes how the log is written; the driver is told whole lines in any case."""
        assert isinstance(self._stream, io.TextIOWrapper)
        self._stream.reconfigure(**options)

    def fileno(self) -> int:
        """The log's: what a child process writes there goes no further."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Writes to the log; tells the driver each line that is complete."""
        self._stream.write(text)
        *lines, last = text.split("\n")
        for line in lines:
            self._client.report("printed", stream=self._name, line=_left_of(self._line + line).rstrip("\r"))
            self._line = ""
        # Of a bar that is drawn over and over, without a new line, only the last state.
        self._line = _left_of(self._line + last)
        return len(text)

    def flush(self) -> None:
        """Flushes the log; a line that is not complete stays."""
        self._stream.flush()

    def finish(self) -> TextIO:
        """Tells the driver a last line that no newline ends; returns the stream that this one stands for."""
        if self._line:
            self._client.report("printed", stream=self._name, line=self._line.rstrip("\r"))
            self._line = ""
        return self._stream


def _left_of(line: str) -> str:
    """What a terminal would show of it: what follows the last return to its beginning."""
    shown = line.rstrip("\r")
    return shown.rpartition("\r")[2] + line[len(shown) :][:1]
