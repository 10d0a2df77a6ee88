"""Handles stdout and stderr of the process that the user starts. Output that cannot be written is lost, but does not
end the run.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import select
import sys
from typing import Any, Self

from parallax_runner.process.changes import undo_later

log = logging.getLogger(__name__)


def keep_going() -> None:
    """Replaces `sys.stdout` and `sys.stderr`, so that a failure of the terminal, pipe or file loses only output and
    does not end the run.

    If one of the descriptors 0 to 2 is closed, it is opened as /dev/null. Otherwise, a file or connection that the run
    opens would get that number, and native code would write its output into it. If other code has already replaced
    Python's own stream, the replacement is left unchanged. If the process belongs to the user's code, it gets its own
    streams back when the run ends.
    """
    for descriptor in (0, 1, 2):
        if not _is_open(descriptor):
            _open_null_as(descriptor)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None or _is_own(stream, descriptor):
            kept = _Stream.closed_from_the_start(name) if stream is None else _Stream.over(name, descriptor, stream)
            before = stream, getattr(sys, f"__{name}__")
            setattr(sys, name, kept)
            setattr(sys, f"__{name}__", kept)
            undo_later(functools.partial(_give_back, name, kept, before))


def log_losses() -> None:
    """Logs output losses that occurred before the log was set up."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, _Stream):
            stream.log_loss()


class _Lossy(io.FileIO):
    """A file descriptor. Data that cannot be written to it is treated as written. `error` is the first error."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Writes all data. After an error, the rest of the data is lost."""
        rest = memoryview(data).cast("B")
        size_bytes = rest.nbytes
        try:
            while rest:
                written = super().write(rest)
                if written is None:  # another program has made the shared terminal non-blocking
                    select.select([], [self], [])
                rest = rest[written or 0 :]
        except OSError as error:
            self.error = self.error or error
        return size_bytes


class _Stream(io.TextIOWrapper):
    """A text stream over a lossy descriptor. Only the first loss is logged."""

    mode = "w"  # the same as in Python's own stream
    _name: str
    _raw: _Lossy
    _logged = False

    @classmethod
    def over(cls, name: str, descriptor: int, before: io.TextIOWrapper) -> Self:
        """Returns a stream that replaces `before`."""
        with contextlib.suppress(OSError, ValueError):  # the new stream will get the same error
            before.flush()
        return cls._of(
            name,
            _Lossy(descriptor, "w", closefd=False),
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=before.line_buffering,
            write_through=before.write_through,  # True if PYTHONUNBUFFERED is set
        )

    @classmethod
    def closed_from_the_start(cls, name: str) -> Self:
        """Returns a stream to /dev/null. The original descriptor is not used, because it may already belong to another
        file."""
        raw = _Lossy(os.devnull, "w")
        raw.error = OSError(errno.EBADF, os.strerror(errno.EBADF))
        return cls._of(name, raw, encoding="utf-8", errors="backslashreplace")

    @classmethod
    def _of(cls, name: str, raw: _Lossy, **options: Any) -> Self:
        unbuffered = options.get("write_through", False)
        stream = cls(raw if unbuffered else io.BufferedWriter(raw), **options)
        stream._name, stream._raw = name, raw
        return stream

    @property
    def name(self) -> str:
        """The name of the stream, the same as the name of Python's own stream."""
        return f"<{self._name}>"

    def write(self, text: str) -> int:
        """Writes the text. If that fails, the text is lost."""
        written = super().write(text)
        self.log_loss()
        return written

    def flush(self) -> None:
        """Writes the buffered text. If that fails, the text is lost."""
        super().flush()
        self.log_loss()

    def log_loss(self) -> None:
        """Logs the first loss as soon as there is a log. The loss is not logged when it occurs, because a log may write
        to this stream again."""
        if self._raw.error is not None and not self._logged and logging.getLogger("parallax_runner").handlers:
            self._logged = True
            log.warning(
                "%s cannot be written: %s; its output is lost, but the run continues", self._name, self._raw.error
            )


def _give_back(name: str, kept: _Stream, before: tuple[Any, Any]) -> None:
    """Puts the two streams `before` back, unless other code has replaced the stream in the meantime."""
    kept.flush()
    if getattr(sys, name) is kept:
        setattr(sys, name, before[0])
        setattr(sys, f"__{name}__", before[1])


def _is_own(stream: Any, descriptor: int) -> bool:
    """Returns whether the stream is Python's own stream for this descriptor, or one of Python's own streams that has
    been closed."""
    return type(stream) is io.TextIOWrapper and (stream.closed or stream.fileno() == descriptor)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _open_null_as(descriptor: int) -> None:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    os.set_inheritable(descriptor, True)
