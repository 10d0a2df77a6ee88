"""Writes the same rows in each format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from parallax_runner.data.table.stored_table import Cell, RawColumn
from tests.single.data.table.rows_of import Row, write_csv

_TYPES = {Cell.NUMBER: pa.float32(), Cell.INTEGER: pa.int64(), Cell.STRING: pa.string()}


def arrow_table(columns: Sequence[RawColumn], rows: Sequence[Row]) -> pa.Table:
    def type_of(column: RawColumn) -> pa.DataType:
        return pa.list_(_TYPES[column.cell]) if column.is_list else _TYPES[column.cell]

    arrays = [pa.array([row[number] for row in rows], type_of(column)) for number, column in enumerate(columns)]
    return pa.table(arrays, names=[column.name for column in columns])


def _csv(path: Path, columns: Sequence[RawColumn], rows: Sequence[Row]) -> None:
    write_csv(path, [column.name for column in columns], rows)


def _tsv(path: Path, columns: Sequence[RawColumn], rows: Sequence[Row]) -> None:
    write_csv(path, [column.name for column in columns], rows, delimiter="\t")


def _json(path: Path, columns: Sequence[RawColumn], rows: Sequence[Row]) -> None:
    names = [column.name for column in columns]
    lines = [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=len(row) % 2 == 0) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _parquet(path: Path, columns: Sequence[RawColumn], rows: Sequence[Row]) -> None:
    pq.write_table(arrow_table(columns, rows), path, row_group_size=3)


def _arrow(path: Path, columns: Sequence[RawColumn], rows: Sequence[Row]) -> None:
    table = arrow_table(columns, rows)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def _arrows(path: Path, columns: Sequence[RawColumn], rows: Sequence[Row]) -> None:
    table = arrow_table(columns, rows)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def _tfrecord(path: Path, columns: Sequence[RawColumn], rows: Sequence[Row]) -> None:
    import tensorflow as tf

    def feature(column: RawColumn, cell: Any) -> Any:
        values = list(cell) if isinstance(cell, tuple) else [] if cell is None else [cell]
        if column.cell is Cell.NUMBER:
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        if column.cell is Cell.INTEGER:
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode() for value in values]))

    with tf.io.TFRecordWriter(str(path), "GZIP" if path.suffix == ".gz" else None) as writer:
        for row in rows:
            features = {one.name: feature(one, cell) for one, cell in zip(columns, row, strict=True)}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


_WRITERS: dict[str, Callable[[Path, Sequence[RawColumn], Sequence[Row]], None]] = {
    "csv": _csv,
    "tsv": _tsv,
    "jsonl": _json,
    "parquet": _parquet,
    "arrow": _arrow,
    "arrows": _arrows,
    "tfrecord": _tfrecord,
}


def written(path: Path, columns: Sequence[RawColumn], rows: Sequence[Row]) -> Path:
    """Writes rows to a file in the format, and compressed in the way, that its name shows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    suffixes = path.name.split(".")[1:]
    packed = suffixes[1] if len(suffixes) > 1 else None
    is_packed_by_writer = suffixes == ["tfrecord", "gz"]
    plain = path.with_suffix("") if packed and not is_packed_by_writer else path
    _WRITERS[suffixes[0]](plain, columns, rows)
    if plain != path:
        data = plain.read_bytes()
        path.write_bytes(gzip.compress(data) if packed == "gz" else pa.Codec("zstd").compress(data, asbytes=True))
        plain.unlink()
    return path
