"""Arrays in files that workers map into memory: every dtype, shape and name comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from parallax_runner.data import stored_arrays
from parallax_runner.data.batch_structure import BatchStructure
from parallax_runner.data.from_arrays import Arrays
from parallax_runner.data.strings import as_bytes

ROWS = 23
DTYPES = ["float32", "float16", "float64", "int8", "uint8", "int64", "bool", "complex64"]
OTHER_DTYPES = ["bfloat16", "float8_e4m3fn", "int4"]


def array_of(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 4, shape).astype(dtype)


def words_of(shape: tuple[int, ...]) -> np.ndarray:
    choices = np.array(["", "é", "a\x00b", "日本" * 50], dtype=object)
    return as_bytes(np.random.default_rng(2).choice(choices, shape), "x")


def arrays_of(train: dict[str, np.ndarray], validation: dict[str, np.ndarray] | None = None, **more: Any) -> Arrays:
    settings = {"global_batch": 4, "shuffle": True, "seed": 5, **more}
    return Arrays(train, validation or {}, BatchStructure(None), **settings)


def saved(dataset: Arrays, folder: Path) -> Arrays:
    folder.mkdir(exist_ok=True)
    stored_arrays.save(dataset, folder)
    return stored_arrays.load(folder)


def check_batches(found: Arrays, expected: Arrays) -> None:
    for start in range(0, 2 * expected.train_size, 4):
        batch, wanted = found.train_batch(start, 4), expected.train_batch(start, 4)
        assert list(batch) == list(wanted)
        for name, array in wanted.items():
            assert batch[name].dtype == array.dtype
            np.testing.assert_array_equal(batch[name], array)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 3), (ROWS, 2, 1), (ROWS, 0)])
def test_every_dtype_and_shape_comes_back(shape: tuple[int, ...], tmp_path: Path) -> None:
    train = {dtype: array_of(dtype, shape) for dtype in DTYPES}
    train |= {dtype: array_of(getattr(ml_dtypes, dtype), shape) for dtype in OTHER_DTYPES}
    dataset = arrays_of({**train, "words": words_of(shape)})
    found = saved(dataset, tmp_path)
    assert found.features == dataset.features
    check_batches(found, dataset)


def test_names_can_contain_any_sign(tmp_path: Path) -> None:
    names = ["a/b", "../up", "", "é\n", "a", "A", '"']
    train = {name: np.full(ROWS, number) for number, name in enumerate(names)}
    check_batches(saved(arrays_of(train), tmp_path / "inner"), arrays_of(train))
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]


@pytest.mark.parametrize("whole_only", [False, True])
def test_the_settings_and_the_validation_examples_come_back(whole_only: bool, tmp_path: Path) -> None:
    train, validation = {"w": words_of((ROWS,))}, {"w": words_of((7,))}
    dataset = arrays_of(train, validation, whole_only=whole_only, validation_sizes=[3, 3, 1], shuffle=False)
    found = saved(dataset, tmp_path)
    for name in ("train_size", "validation_size", "validation_rows", "notes", "seed", "shuffle", "global_batch"):
        assert getattr(found, name) == getattr(dataset, name)
    check_batches(found, dataset)
    np.testing.assert_array_equal(found.validation_batch(2, 5)["w"], validation["w"][2:])


def test_arrays_are_mapped_and_not_read(tmp_path: Path) -> None:
    found = saved(arrays_of({"n": array_of("float32", (ROWS, 2))}), tmp_path)
    assert isinstance(found.parts()["train"]["n"], np.memmap)
    assert not found.parts()["train"]["n"].flags.writeable


def test_the_size_is_that_of_the_files(tmp_path: Path) -> None:
    dataset = arrays_of({"n": array_of("int8", (ROWS, 2)), "w": words_of((ROWS, 3))}, {})
    saved(dataset, tmp_path)
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("*.npy"))
    assert on_disk - stored_arrays.size_bytes(dataset) == 3 * 128  # the heads of three files


@pytest.mark.parametrize("name", ["arrays.json", "train_0.npy", "train_1.npy.offsets.npy"])
def test_a_damaged_folder_is_refused(name: str, tmp_path: Path) -> None:
    saved(arrays_of({"n": array_of("int64", (ROWS,)), "w": words_of((ROWS,))}), tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises((OSError, ValueError)):
        stored_arrays.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(OSError, match=name):
        stored_arrays.load(tmp_path)
