"""TFRecord files in zstandard are decompressed piece by piece, in whole records."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import tensorflow as tf

from parallax_runner.data.table import record_pieces
from parallax_runner.data.table.read_columns import ReadColumn
from parallax_runner.data.table.record_pieces import FRAME_BYTES, end_of_records, plain_pieces
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.data.table.tfrecord_reader import TfRecordReader
from parallax_runner.errors import DataError
from tests.single.data.table.rows_of import columns_of
from tests.single.data.table.test_tfrecord_reader import example

RECORDS = [b"", b"a", b"bc" * 50, *(b"x" * length for length in range(20))]


def plain(folder: Path, records: list[bytes]) -> bytes:
    with tf.io.TFRecordWriter(str(folder / "plain")) as writer:
        for record in records:
            writer.write(record)
    return (folder / "plain").read_bytes()


def packed(folder: Path, data: bytes) -> SourceFile:
    path = folder / "t.tfrecord.zst"
    path.write_bytes(pa.Codec("zstd").compress(data, asbytes=True))
    return SourceFile(path.name, path, path.stat().st_size, 0)


@pytest.mark.parametrize("piece_bytes", [1, 17, 64, 2**20])
def test_the_records_are_those_of_the_plain_file(
    piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_pieces, "PIECE_BYTES", piece_bytes)
    file = packed(tmp_path, plain(tmp_path, RECORDS))
    found = [one for path in plain_pieces(file) for one in tf.data.TFRecordDataset(path).as_numpy_iterator()]
    assert found == RECORDS


def test_the_end_of_whole_records(tmp_path: Path) -> None:
    data = plain(tmp_path, [b"ab", b"", b"c"])
    ends = [0, FRAME_BYTES + 2, 2 * FRAME_BYTES + 2, len(data)]
    for size in range(len(data) + 1):
        assert end_of_records(data[:size]) == max(end for end in ends if end <= size)


def test_a_file_that_ends_within_a_record_is_refused(tmp_path: Path) -> None:
    data = plain(tmp_path, [b"ab", b"cd"])
    file = packed(tmp_path, data[:-3])
    with pytest.raises(DataError, match=rf"t\.tfrecord\.zst: .*last record is cut off in its first {FRAME_BYTES - 1}"):
        list(plain_pieces(file))


def test_a_record_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_pieces, "MOST_RECORD_BYTES", 1000)
    monkeypatch.setattr(record_pieces, "PIECE_BYTES", 100)
    with pytest.raises(DataError, match=r"a record has more than 1000 bytes"):
        list(plain_pieces(packed(tmp_path, plain(tmp_path, [b"x" * 2000]))))


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    data = bytearray(plain(tmp_path, [example(i=[1]), example(i=[2])]))
    data[-7] ^= 1
    read = [ReadColumn.of(column) for column in columns_of(i="integer")]
    with pytest.raises(DataError, match=r"t\.tfrecord\.zst: cannot be read: .*corrupted.*Expected a TFRecord file"):
        list(TfRecordReader().blocks(packed(tmp_path, bytes(data)), read))


def test_no_file_stays_open(tmp_path: Path) -> None:
    file = packed(tmp_path, plain(tmp_path, RECORDS))
    before = set(Path("/proc/self/fd").iterdir())
    pieces = plain_pieces(file)
    next(pieces)
    pieces.close()
    assert len(set(Path("/proc/self/fd").iterdir())) <= len(before)
