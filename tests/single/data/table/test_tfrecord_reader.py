"""Examples of TFRecord files: missing features, blocks, and files that are cut off at any byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from parallax_runner.data.table.read_columns import BadBlock, Lists, ReadColumn
from parallax_runner.data.table.sources import SourceFile
from parallax_runner.data.table.stored_table import Cell
from parallax_runner.data.table.tfrecord_reader import BATCH_ROWS, SAMPLED_ROWS, ExampleBlock, TfRecordReader
from parallax_runner.errors import DataError
from tests.single.data.table.rows_of import columns_of

LISTS = {"int64": ("int64_list", tf.train.Int64List), "float": ("float_list", tf.train.FloatList)}
BYTES = ("bytes_list", tf.train.BytesList)


def example(**features: Any) -> bytes:
    """Returns an example. A feature has a list of integers, floats or bytes, or an empty list, which has no kind."""

    def feature(values: list[Any]) -> Any:
        if not values:
            return tf.train.Feature()
        kind = {int: LISTS["int64"], float: LISTS["float"], bytes: BYTES}[type(values[0])]
        return tf.train.Feature(**{kind[0]: kind[1](value=values)})

    made = {name: feature(values) for name, values in features.items()}
    return bytes(tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString())


def write(path: Path, examples: list[bytes]) -> SourceFile:
    with tf.io.TFRecordWriter(str(path), "GZIP" if path.suffix == ".gz" else None) as writer:
        for one in examples:
            writer.write(one)
    return SourceFile(path.name, path, path.stat().st_size, 0)


def read(*columns: Any) -> list[ReadColumn]:
    return [ReadColumn.of(column) for column in columns]


@pytest.mark.parametrize("seed", range(3))
def test_lists_and_missing_values(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = [generator.integers(-9, 9, generator.integers(0, 4)).tolist() for _ in range(50)]
    words = [[f"é{number}".encode() for number in row] for row in rows]
    firsts = [row[:1] for row in rows]
    examples = [example(l=row, w=word, i=first) for row, word, first in zip(rows, words, firsts, strict=True)]
    block = ExampleBlock([*examples, example()], {"l": "int64", "w": "string", "i": "int64"}, 1)
    lists, texts, integers = block.columns(read(*columns_of(l="number list", w="string list", i="string")))
    assert isinstance(lists, Lists) and isinstance(texts, Lists) and isinstance(integers, pa.Array)
    assert lists.lengths.tolist() == texts.lengths.tolist() == [*map(len, rows), 0]
    assert lists.values.to_pylist() == [number for row in rows for number in row]
    assert texts.values.to_pylist() == [word.decode() for row in words for word in row]
    assert integers.to_pylist() == [*(str(row[0]) if row else None for row in rows), None]


def test_a_block_without_any_value() -> None:
    block = ExampleBlock([example(), example(i=[])], {"i": "int64", "s": "string"}, 1)
    for array in block.columns(read(*columns_of(i="integer", s="string"))):
        assert isinstance(array, pa.Array)
        assert array.to_pylist() == [None, None]


def test_blocks_have_a_limit_and_number_their_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "t.tfrecord.gz", [example(i=[row]) for row in range(BATCH_ROWS + 3)])
    columns = read(*columns_of(i="integer"))
    blocks = list(TfRecordReader().blocks(file, columns))
    assert [block.lines().tolist() for block, _ in blocks] == [
        list(range(1, BATCH_ROWS + 1)),
        list(range(BATCH_ROWS + 1, BATCH_ROWS + 4)),
    ]
    assert all(read_bytes <= file.size_bytes for _, read_bytes in blocks)
    (last,) = blocks[1][0].columns(columns)
    assert isinstance(last, pa.Array)
    assert last.to_pylist() == [BATCH_ROWS, BATCH_ROWS + 1, BATCH_ROWS + 2]


def test_the_kind_of_a_feature_is_that_of_its_first_value(tmp_path: Path) -> None:
    """A feature that has no values at first has the kind of its column."""
    empty = [example(a=[], b=[])] * SAMPLED_ROWS
    columns = [ReadColumn("a", Cell.STRING, pa.string()), ReadColumn("b", Cell.NUMBER, pa.float32())]
    for number, (first, expected) in enumerate({"late": ["x", 2.5], "soon": ["7", 3.0]}.items()):
        examples = [*empty, example(a=[b"x"], b=[2.5])] if first == "late" else [*empty[:5], example(a=[7], b=[3])]
        file = write(tmp_path / f"{number}.tfrecord", examples)
        assert sorted(TfRecordReader().names(file)) == ["a", "b"]
        ((block, _),) = TfRecordReader().blocks(file, columns)
        found = [array.to_pylist()[-1] for array in block.columns(columns) if isinstance(array, pa.Array)]
        assert found == expected


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    examples = [example(i=[row]) for row in range(3)]
    whole = write(tmp_path / "t.tfrecord", examples).path.read_bytes()
    size_of_record = len(whole) // 3
    columns = read(*columns_of(i="integer"))
    for size in range(1, len(whole)):
        path = tmp_path / "cut.tfrecord"
        path.write_bytes(whole[:size])
        file = SourceFile(path.name, path, size, 0)
        if size % size_of_record == 0:
            assert (
                sum(len(block.lines()) for block, _ in TfRecordReader().blocks(file, columns)) == size // size_of_record
            )
            continue
        with pytest.raises(DataError, match=r"cut\.tfrecord: cannot be read: .*Expected a (whole )?TFRecord file"):
            list(TfRecordReader().blocks(file, columns))


def test_what_is_not_zstandard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.tfrecord.zst"
    path.write_bytes(b"x")
    with pytest.raises(
        DataError, match=r"t\.tfrecord\.zst: cannot be read: .*in the format of zstd, as its name shows"
    ):
        TfRecordReader().names(SourceFile(path.name, path, 1, 0))


def test_a_block_with_a_bad_example_is_refused() -> None:
    columns = read(*columns_of(i="integer"))
    for bad in (example(i=[1, 2]), example(i=[b"\xff"]), b"\xff\xff"):
        with pytest.raises(BadBlock):
            ExampleBlock([example(i=[1]), bad], {"i": "int64"}, 1).columns(columns)
    assert ExampleBlock([b"\xff\xff"], {}, 1).fault_of_row(columns) is not None
    assert ExampleBlock([example(i=[b"x"])], {}, 1).fault_of_row(columns) is None
    assert "value: 2" in ExampleBlock([example(i=[1, 2])], {}, 1).cell("i")
    assert ExampleBlock([b"\xff"], {}, 1).cell("i") == "None"
