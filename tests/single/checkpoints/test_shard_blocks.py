"""Large variables in shards are written in blocks of rows, and read as whole variables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.shard_blocks import ShardBlocks
from parallax_runner.checkpoints.slices import Slice
from parallax_runner.checkpoints.writer import CheckpointWriter

BLOCK_BYTES = 100


def shards(
    name: str, dtype: tf.DType, full: tuple[int, ...], count: int, *, first: int = 0, rows: int | None = None
) -> list[Slice]:
    """The shards of a variable, or of its `rows` rows from row `first`: shard k has every `count`-th row from row k."""
    size = full[0] if rows is None else rows
    zeros = (0,) * (len(full) - 1)
    return [
        Slice(name, dtype, full, (first + k, *zeros), (len(range(k, size, count)), *full[1:]), count)
        for k in range(count)
    ]


SLICES = [
    *shards("large", tf.float32, (101, 3), 4),
    *shards("flat", tf.float64, (97,), 3),
    *shards("half", tf.float16, (60, 2), 2),
    *shards("small", tf.float32, (5, 2), 2),
    *shards("cut", tf.float32, (50, 2), 3, first=0, rows=17),
    *shards("cut", tf.float32, (50, 2), 2, first=17, rows=33),
    Slice("whole", tf.float32, (80, 2), (0, 0), (80, 2)),
    Slice("step", tf.int64, (), (), ()),
]
IN_BLOCKS = {"large", "flat", "cut"}


def wholes() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    shapes = {part.name: (part.full_shape, part.dtype) for part in SLICES}
    return {
        name: np.asarray(draw.normal(size=shape) * 9, dtype.as_numpy_dtype) for name, (shape, dtype) in shapes.items()
    }


def test_large_variables_are_written_in_blocks(tmp_path: Path) -> None:
    values = wholes()
    writer = CheckpointWriter(SLICES, BLOCK_BYTES)
    writer.write(tmp_path / "model", [values[part.name][part.where] for part in SLICES])
    writer.read_back(tmp_path / "model")
    assert writer.block_rows == {"large": 8, "flat": 12, "cut": 12}
    reader = tf.train.load_checkpoint(str(tmp_path / "model"))
    assert reader.get_variable_to_shape_map().keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value, err_msg=name)
    assert not [path.name for path in tmp_path.iterdir() if "-part" in path.name or "-kept" in path.name]


def test_a_damaged_block_shows_when_it_is_read_back(tmp_path: Path) -> None:
    values = wholes()
    writer = CheckpointWriter(SLICES, BLOCK_BYTES)
    writer.write(tmp_path / "model", [values[part.name][part.where] for part in SLICES])
    data = max(tmp_path.glob("model.data-*"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(tf.errors.OpError):
        writer.read_back(tmp_path / "model")


def test_blocks_have_all_rows_once() -> None:
    blocks = ShardBlocks(SLICES, BLOCK_BYTES)
    assert blocks.block_rows.keys() == IN_BLOCKS
    seen = {name: np.zeros(len(value), int) for name, value in wholes().items() if name in IN_BLOCKS}
    for block, _ in blocks.slices():
        assert block.shape[0] * block.row_bytes <= BLOCK_BYTES
        seen[block.name][block.where[0]] += 1
    assert all((counts == 1).all() for counts in seen.values())


def test_without_large_shards_there_is_one_file(tmp_path: Path) -> None:
    values = wholes()
    writer = CheckpointWriter(SLICES)
    writer.write(tmp_path / "model", [values[part.name][part.where] for part in SLICES])
    assert writer.block_rows == {}
    assert len(list(tmp_path.iterdir())) == 2
