"""Parts that several writers have written are one checkpoint of whole variables after they are merged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from parallax_runner.checkpoints.part_files import SLICED_DTYPES, PartFiles, SliceReader, data_ending, merge
from parallax_runner.checkpoints.slices import Slice

ROWS, WIDTH = 11, 3
ALL_DTYPES = sorted(SLICED_DTYPES, key=lambda dtype: dtype.name)


def whole(dtype: tf.DType = tf.float32, seed: int = 1) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(0, 2 if dtype.is_bool else 100, (ROWS, WIDTH))
    return drawn.astype(dtype.as_numpy_dtype)


def rows(name: str, dtype: tf.DType, first: int, count: int) -> Slice:
    return Slice(name, dtype, (ROWS, WIDTH), (first, 0), (count, WIDTH))


def written(
    folder: Path, name: str, slices: list[Slice], values: dict[str, np.ndarray], part_bytes: int = 1 << 20
) -> list[Path]:
    files = PartFiles(folder, name, part_bytes)
    for part in slices:
        files.add(part, values[part.name][part.where])
    files.flush()
    return files.parts


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda dtype: dtype.name)
def test_parts_are_one_checkpoint(dtype: tf.DType, tmp_path: Path) -> None:
    values = {"a/table": whole(dtype, 1), "b": whole(dtype, 2)}
    first = written(tmp_path, "part-0", [rows("a/table", dtype, 0, 4), rows("b", dtype, 0, ROWS)], values)
    second = written(tmp_path, "part-1", [rows("a/table", dtype, 9, 2), rows("a/table", dtype, 4, 5)], values)
    merge([*first, *second], tmp_path / "model.ckpt")
    reader = tf.train.load_checkpoint(str(tmp_path / "model.ckpt"))
    assert reader.get_variable_to_shape_map() == {"a/table": [ROWS, WIDTH], "b": [ROWS, WIDTH]}
    for name, value in values.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value)
    read = SliceReader().read(tmp_path / "model.ckpt", rows("a/table", dtype, 3, 7))
    np.testing.assert_array_equal(read, values["a/table"][3:10])
    names = {f"model.ckpt.{data_ending(number, 2)}" for number in range(2)}
    assert {path.name for path in tmp_path.iterdir()} == {"model.ckpt.index", *names}


def test_variables_of_other_dtypes_cannot_be_read_in_slices(tmp_path: Path) -> None:
    """If this fails, TensorFlow can read slices of one more dtype."""
    for dtype in (tf.float16, tf.uint16, tf.uint32, tf.uint64):
        parts = written(tmp_path, dtype.name, [rows("a", dtype, 0, 4), rows("a", dtype, 4, 7)], {"a": whole(dtype)})
        with pytest.raises(tf.errors.InvalidArgumentError, match="not supported"):
            SliceReader().read(parts[0], rows("a", dtype, 1, 2))


def test_a_part_ends_when_it_is_large_enough(tmp_path: Path) -> None:
    slices = [rows("a", tf.float32, first, 1) for first in range(ROWS)]
    parts = written(tmp_path, "part", slices, {"a": whole()}, part_bytes=3 * WIDTH * 4)
    assert len(parts) == 4
    merge(parts, tmp_path / "model.ckpt")
    np.testing.assert_array_equal(tf.train.load_checkpoint(str(tmp_path / "model.ckpt")).get_tensor("a"), whole())


def test_a_missing_part_is_refused(tmp_path: Path) -> None:
    parts = written(tmp_path, "part", [rows("a", tf.float32, 0, ROWS)], {"a": whole()})
    with pytest.raises(tf.errors.OpError):
        merge([*parts, tmp_path / "part-00007"], tmp_path / "model.ckpt")


def test_a_missing_slice_shows_when_it_is_read(tmp_path: Path) -> None:
    slices = [rows("a", tf.float32, 0, 4), rows("a", tf.float32, 8, 3)]
    merge(written(tmp_path, "part", slices, {"a": whole()}), tmp_path / "model.ckpt")
    reader = SliceReader()
    for part in slices:
        np.testing.assert_array_equal(reader.read(tmp_path / "model.ckpt", part), whole()[part.where])
    with pytest.raises(tf.errors.OpError):
        reader.read(tmp_path / "model.ckpt", rows("a", tf.float32, 4, 4))


def test_damaged_values_show_when_they_are_read(tmp_path: Path) -> None:
    merge(written(tmp_path, "part", [rows("a", tf.float32, 0, 4), rows("a", tf.float32, 4, 7)], {"a": whole()}),
          tmp_path / "model.ckpt")  # fmt: skip
    data = tmp_path / f"model.ckpt.{data_ending(0, 1)}"
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    reader = SliceReader()
    reader.read(tmp_path / "model.ckpt", rows("a", tf.float32, 0, 4))
    with pytest.raises(tf.errors.OpError):
        reader.read(tmp_path / "model.ckpt", rows("a", tf.float32, 4, 7))


def test_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "lr=[1]"
    folder.mkdir()
    merge(written(folder, "part", [rows("a", tf.float32, 0, ROWS)], {"a": whole()}), folder / "model.ckpt")
    read = SliceReader().read(folder / "model.ckpt", rows("a", tf.float32, 0, ROWS))
    np.testing.assert_array_equal(read, whole())
