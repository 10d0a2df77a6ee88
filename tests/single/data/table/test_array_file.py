"""Files of NumPy that grow by rows: NumPy reads them as the rows that were appended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parallax_runner.data.table.array_file import ArrayFile, ScratchArray, mapped

DTYPES = ["float32", "int64", "int32", "uint8", "bool"]


@pytest.mark.parametrize("row_shape", [(), (0,), (1,), (3, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_reads_the_appended_rows(dtype: str, row_shape: tuple[int, ...], tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    pieces = [generator.integers(0, 100, (rows, *row_shape)).astype(dtype) for rows in (3, 0, 1000, 1)]
    with ArrayFile(tmp_path / "a.npy", np.dtype(dtype), row_shape) as file:
        for piece in pieces:
            file.append(piece)
    expected = np.concatenate(pieces)
    assert (file.rows, file.size_bytes) == (1004, expected.nbytes)
    for found in (np.load(file.path), mapped(file.path), ScratchArray(file.path).array):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)


def test_rows_of_any_layout_and_type_are_appended(tmp_path: Path) -> None:
    rows = np.asfortranarray(np.arange(12).reshape(4, 3))[::-1]
    with ArrayFile(tmp_path / "a.npy", np.dtype(np.float32), (3,)) as file:
        file.append(rows)
    np.testing.assert_array_equal(np.load(file.path), rows.astype(np.float32))


def test_a_file_without_rows(tmp_path: Path) -> None:
    with ArrayFile(tmp_path / "a.npy", np.dtype(np.int32), (5,)) as file:
        pass
    file.close()  # again
    for found in (mapped(file.path), mapped(file.path, mode="r+"), ScratchArray(file.path).array):
        assert (found.shape, found.dtype) == ((0, 5), np.int32)


def test_the_header_has_room_for_any_number_of_rows(tmp_path: Path) -> None:
    file = ArrayFile(tmp_path / "a.npy", np.dtype(np.uint8))
    file.rows = 2**62
    file.close()
    with open(file.path, "rb") as opened:
        np.lib.format.read_magic(opened)
        assert np.lib.format.read_array_header_1_0(opened)[0] == (2**62,)


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        ArrayFile(tmp_path / "a.npy", np.dtype(np.uint8))
    assert (tmp_path / "a.npy").read_bytes() == b"mine"


def test_pages_that_were_given_back_are_read_again(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).normal(size=(5000, 4))
    with ArrayFile(tmp_path / "a.npy", rows.dtype, (4,)) as file:
        file.append(rows)
    scratch = ScratchArray(file.path)
    first = scratch.array.sum()
    scratch.give_back()
    assert scratch.array.sum() == first
    np.testing.assert_array_equal(scratch.array, rows)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    with ArrayFile(tmp_path / "a.npy", np.dtype(np.int64)) as file:
        file.append(np.arange(100))
    data = file.path.read_bytes()
    for size in (len(data) - 1, 40, 0):
        file.path.write_bytes(data[:size])
        with pytest.raises((OSError, ValueError)):
            mapped(file.path)


def test_a_mapped_file_can_be_written(tmp_path: Path) -> None:
    with ArrayFile(tmp_path / "a.npy", np.dtype(np.int64)) as file:
        file.append(np.arange(3))
    mapped(file.path, mode="r+")[1] = 9
    assert np.load(file.path).tolist() == [0, 9, 2]
    with pytest.raises(ValueError, match="read-only"):
        mapped(file.path)[1] = 1
