"""Reads TFRecord files of tf.train.Example with TensorFlow's parser.

The parser runs in a graph and a session of its own, because the process may have turned eager execution off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from parallax_runner.data.table.raw_block import Fault, RawBlock, Reader
from parallax_runner.data.table.read_columns import BadBlock, Column, ReadColumn, as_read
from parallax_runner.data.table.record_pieces import FRAME_BYTES, plain_pieces
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.data.table.stored_table import Cell
from parallax_runner.errors import DataError
from parallax_runner.process.tensorflow_import import import_tensorflow

import_tensorflow()

import tensorflow.compat.v1 as tf  # noqa: E402

SAMPLED_ROWS = 100
BATCH_ROWS = 2**11
_KINDS = {"bytes_list": "string", "float_list": "float32", "int64_list": "int64"}
_KIND_OF_CELL = {Cell.NUMBER: "float32", Cell.INTEGER: "int64", Cell.STRING: "string"}


@dataclass(frozen=True)
class _Parser:
    """A graph that parses examples. `kinds` has the dtype of each feature."""

    kinds: tuple[tuple[str, str], ...]
    _made: list[Any] = field(default_factory=list, compare=False)

    def parse(self, examples: Sequence[bytes]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns the values of each feature, and their numbers, int64 [rows]. Raises BadBlock if an example cannot be
        parsed."""
        session, serialized, parsed = self._made
        try:
            found = session.run(parsed, {serialized: np.array(examples, dtype=object)})
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as error:  # the message may quote any bytes
            raise BadBlock(str(error)) from error
        return {name: (one.values, np.diff(one.row_splits)) for name, one in found.items()}


@lru_cache(maxsize=64)
def _parser(kinds: tuple[tuple[str, str], ...]) -> _Parser:
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        serialized = tf.placeholder(tf.string, [None])
        features = {name: tf.io.RaggedFeature(tf.as_dtype(dtype), row_splits_dtype=tf.int64) for name, dtype in kinds}
        parsed = tf.io.parse_example(serialized, features)
    session = tf.Session(graph=graph, config=tf.ConfigProto(device_count={"GPU": 0}))
    return _Parser(kinds, [session, serialized, parsed])


@dataclass(frozen=True)
class ExampleBlock(RawBlock):
    """Serialized examples. `first_row` is the number of the first one in its file, from 1 on."""

    examples: Sequence[bytes]
    kinds: Mapping[str, str]
    first_row: int

    @property
    def place(self) -> str:
        """See RawBlock."""
        return "row"

    def columns(self, read: Sequence[ReadColumn]) -> list[Column]:
        """See RawBlock."""
        parser = _parser(tuple((column.name, self.kinds[column.name]) for column in read))
        parsed = parser.parse(self.examples)
        return [as_read(_array(*parsed[column.name], is_list=column.has_lists), column) for column in read]

    def lines(self) -> np.ndarray:
        """See RawBlock."""
        return np.arange(self.first_row, self.first_row + len(self.examples))

    def regular_start(self, rows: int) -> int | None:
        """See RawBlock."""
        return self.first_row

    def divided(self) -> tuple[ExampleBlock, ExampleBlock] | None:
        """See RawBlock."""
        middle = len(self.examples) // 2
        if middle == 0:
            return None
        second = ExampleBlock(self.examples[middle:], self.kinds, self.first_row + middle)
        return ExampleBlock(self.examples[:middle], self.kinds, self.first_row), second

    def fault_of_row(self, read: Sequence[ReadColumn]) -> Fault | None:
        """See RawBlock."""
        return None if _example(self.examples[0]) is not None else Fault("a tf.train.Example")

    def cell(self, name: str) -> str:
        """See RawBlock."""
        example = _example(self.examples[0])
        feature = None if example is None else example.features.feature.get(name)
        return " ".join(str(feature).split())


class TfRecordReader(Reader):
    """Reads TFRecord files."""

    has_schema = False

    def names(self, file: SourceFile) -> Sequence[str]:
        """See Reader."""
        return list(_kinds(file))

    def blocks(self, file: SourceFile, read: Sequence[ReadColumn]) -> Iterator[tuple[RawBlock, int]]:
        """See Reader."""
        found = _kinds(file)
        kinds = {column.name: found.get(column.name) or _KIND_OF_CELL[column.cell] for column in read}
        records = _records(file)
        first_row, read_bytes = 1, 0
        while examples := list(islice(records, BATCH_ROWS)):
            read_bytes += sum(map(len, examples))
            yield ExampleBlock(examples, kinds, first_row), min(read_bytes, file.size_bytes)
            first_row += len(examples)


def _records(file: SourceFile) -> Iterator[bytes]:
    if file.compression == "zstd":
        for path in plain_pieces(file):
            yield from _read(file, path, tf.io.TFRecordCompressionType.NONE)
        return
    kind = tf.io.TFRecordCompressionType.NONE if file.compression is None else tf.io.TFRecordCompressionType.GZIP
    read_bytes = 0
    for record in _read(file, str(file.path), kind):
        yield record
        read_bytes += len(record) + FRAME_BYTES
    # TensorFlow takes a length that is cut off for the end of the file.
    if file.compression is None and read_bytes != file.size_bytes:
        left = file.size_bytes - read_bytes
        raise DataError(
            f"{file.path}: cannot be read: its last record is cut off in its first {left} bytes. Expected a whole "
            "TFRecord file."
        )


def _read(file: SourceFile, path: str, compression: Any) -> Iterator[bytes]:
    """Yields the records at a path, which is that of the file or of a piece of it."""
    try:
        yield from tf.python_io.tf_record_iterator(path, tf.io.TFRecordOptions(compression))
    except tf.errors.OpError as error:
        reason = str(error.message).replace(path, file.path.name)
        raise DataError(f"{file.path}: cannot be read: {reason}. Expected a TFRecord file.") from error


def _kinds(file: SourceFile) -> dict[str, str | None]:
    """Returns the dtype of each feature in the first examples, or None if it has no values there."""
    found: dict[str, str | None] = {}
    for record in islice(_records(file), SAMPLED_ROWS):
        example = _example(record)
        for name, feature in () if example is None else example.features.feature.items():
            kind = _KINDS.get(feature.WhichOneof("kind"))
            found[name] = found.get(name) or kind
    return found


def _example(record: bytes) -> Any:
    """Returns a parsed example, or None if the bytes are none."""
    try:
        return tf.train.Example.FromString(record)
    except Exception:  # protobuf's errors differ among its implementations
        return None


def _array(values: np.ndarray, lengths: np.ndarray, *, is_list: bool) -> pa.Array:
    """Returns a feature's values as an array of lists, or as an array of cells that may be missing."""
    arrow_type = pa.binary() if values.dtype == object else pa.from_numpy_dtype(values.dtype)
    array = pa.array(values, type=arrow_type)
    if is_list:
        return pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]), array)
    if np.any(lengths > 1):
        raise BadBlock("more than one value")
    positions = pa.array(np.cumsum(lengths) - 1, mask=lengths == 0)
    return array.take(positions)
