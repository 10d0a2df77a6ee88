"""Reads text files, plain or compressed, in blocks of whole records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from parallax_runner.data.table.sources import SourceFile
from parallax_runner.errors import DataError

BLOCK_BYTES = 2**23  # larger blocks need more memory; smaller ones repeat more strings
MOST_RECORD_BYTES = 2**28
_NEWLINE, _RETURN = ord("\n"), ord("\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextPiece:
    """Whole records of a file. `first_line` is the line at which they begin, from 1 on, and `line_count` is the number
    of lines. `read_bytes` is the number of bytes of the file that have been read."""

    data: bytes
    first_line: int
    line_count: int
    read_bytes: int

    @property
    def is_blank(self) -> bool:
        """Whether all lines are empty."""
        starts_blank = self.data[:1] in (b"", b"\r", b"\n")
        return starts_blank and not self.data.strip(b"\r\n")

    def from_record(self, start: int, line: int) -> TextPiece:
        """Returns the records from a position on, before which there are this many lines."""
        return TextPiece(self.data[start:], self.first_line + line, self.line_count - line, self.read_bytes)

    def up_to_record(self, start: int, line: int) -> TextPiece:
        """Returns the records before a position, before which there are this many lines."""
        return TextPiece(self.data[:start], self.first_line, line, self.read_bytes)


class OpenText:
    """The text of a file, decompressed. Raises DataError if the file cannot be read."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        try:
            self._raw = pa.OSFile(str(file.path))
            packed = file.compression
            self._stream: Any = self._raw if packed is None else pa.CompressedInputStream(self._raw, packed)
        except OSError as error:
            raise _unreadable(file, error) from error

    def read(self, size_bytes: int) -> bytes:
        """Returns the next bytes, or fewer at the end."""
        try:
            return bytes(self._stream.read(size_bytes))
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(self._file, error) from error

    @property
    def read_bytes(self) -> int:
        """The number of bytes of the file, as they are on disk, that have been read."""
        return int(self._raw.tell())

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()
        self._raw.close()


def pieces(
    file: SourceFile, end_of_records: Callable[[bytes, bytes], int], block_bytes: int | None = None
) -> Iterator[TextPiece]:
    """Yields the text of a file in pieces of about `block_bytes`.

    `end_of_records` gets the beginning of a record and the text that follows. It returns the position behind the last
    whole record in the text that follows, or 0.
    """
    size_bytes = block_bytes or BLOCK_BYTES
    text = OpenText(file)
    try:
        rest, line = text.read(len(_BYTE_ORDER_MARK)).removeprefix(_BYTE_ORDER_MARK), 1
        while more := text.read(max(size_bytes, len(rest))):
            end = end_of_records(rest, more)
            if end == 0:
                rest += more
                if len(rest) > MOST_RECORD_BYTES:
                    raise _endless(file, line)
                continue
            data = b"".join([rest, memoryview(more)[:end]])
            rest = more[end:]
            lines = _newlines(data)
            yield TextPiece(data, line, lines, text.read_bytes)
            line += lines
        if rest:
            ends_with_newline = rest.endswith(b"\n")
            yield TextPiece(rest, line, _newlines(rest) + (not ends_with_newline), text.read_bytes)
    finally:
        text.close()


def _newlines(data: bytes) -> int:
    """Returns the number of newlines. `bytes.count` takes seven times as long."""
    return int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) == _NEWLINE))


def records(data: bytes, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the start of each record and the number of lines before it, both int64 [records], from the positions
    behind the newlines that end records. Empty lines are no records."""
    if len(ends) == 0 or ends[-1] < len(data):
        ends = np.append(ends, len(data))
    starts = np.concatenate([[0], ends[:-1]])
    text = np.frombuffer(data, dtype=np.uint8)
    lines = np.searchsorted(np.flatnonzero(text == _NEWLINE), starts)
    is_empty = (text[starts] == _NEWLINE) | ((text[starts] == _RETURN) & (ends - starts == 2))
    return starts[~is_empty], lines[~is_empty]


def _endless(file: SourceFile, line: int) -> DataError:
    return DataError(
        f"{file.path}: line {line}: the row that begins here has no end within {MOST_RECORD_BYTES} bytes. Expected "
        'newlines (\\n) between rows, and a second quotation mark (") after each first one.'
    )


def _unreadable(file: SourceFile, error: Exception) -> DataError:
    packed = file.compression
    kind = "a file" if packed is None else f"a file in the format of {packed}, as its name shows"
    return DataError(f"{file.path}: cannot be read: {error}. Expected {kind}.")
