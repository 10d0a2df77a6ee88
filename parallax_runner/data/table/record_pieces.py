"""The records of a TFRecord file in zstd, for TensorFlow's reader, which only knows gzip."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from parallax_runner.data.table.sources import SourceFile
from parallax_runner.data.table.text_stream import OpenText
from parallax_runner.errors import DataError

PIECE_BYTES = 2**24
MOST_RECORD_BYTES = 2**30
_LENGTH_BYTES = 8
FRAME_BYTES = 16  # the length of a record and two checksums


def plain_pieces(file: SourceFile) -> Iterator[str]:
    """Yields the path of a file with the next records, decompressed. The file is in memory, and exists until the next
    one is asked for. Raises DataError if the file cannot be decompressed or ends within a record."""
    stream, rest = OpenText(file), b""
    try:
        while more := stream.read(PIECE_BYTES):
            data = rest + more
            end = end_of_records(data)
            rest = data[end:]
            if len(rest) > MOST_RECORD_BYTES:
                raise _refusal(file, f"a record has more than {MOST_RECORD_BYTES} bytes")
            if end:
                with _in_memory(data[:end]) as path:
                    yield path
    finally:
        stream.close()
    if rest:
        raise _refusal(file, f"its last record is cut off in its first {len(rest)} bytes")


def end_of_records(data: bytes) -> int:
    """Returns the position behind the last whole record. `data` begins with a record."""
    end = 0
    while end + _LENGTH_BYTES <= len(data):
        (length,) = struct.unpack_from("<Q", data, end)
        if end + length + FRAME_BYTES > len(data):
            break
        end += length + FRAME_BYTES
    return end


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("records")
    try:
        left = memoryview(data)
        while len(left):
            left = left[os.write(descriptor, left) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _refusal(file: SourceFile, reason: str) -> DataError:
    return DataError(f"{file.path}: cannot be read: {reason}. Expected a whole TFRecord file.")
