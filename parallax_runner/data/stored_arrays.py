"""Writes arrays to files that other processes map into memory, so that the processes of a host share them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from parallax_runner.data import strings
from parallax_runner.data.batch_structure import BatchStructure
from parallax_runner.data.from_arrays import Arrays
from parallax_runner.files.plain import read_object
from parallax_runner.files.whole import write_whole

FACTS = "arrays.json"
TRAIN, VALIDATION = "train", "validation"


def why_it_stays(dataset: Arrays) -> str | None:
    """Returns None, since arrays of numbers and strings can always be written."""
    return None


def size_bytes(dataset: Arrays) -> int:
    """Returns the size of all arrays."""
    parts = dataset.parts()
    return sum(_bytes_of(array) for arrays in parts.values() for array in arrays.values())


def _bytes_of(array: np.ndarray) -> int:
    return strings.stored_bytes(array) if strings.dtype_name(array) == strings.STRING else array.nbytes


def graphs(dataset: Arrays) -> Iterator[Any]:
    """Yields nothing, since arrays are no graphs."""
    return iter(())


def save(dataset: Arrays, folder: Path) -> None:
    """Writes each array as a file, and what else a worker needs as JSON."""
    files = {part: _save(arrays, folder, part) for part, arrays in dataset.parts().items()}
    names = ("global_batch", "shuffle", "seed", "whole_only", "validation_sizes")
    settings = {name: getattr(dataset, name) for name in names}
    write_whole(folder / FACTS, json.dumps({"files": files, "settings": settings}))


def load(folder: Path) -> Arrays:
    """Returns the dataset with memory-mapped arrays. Its structure is unknown, since a worker reads only named
    features. Raises OSError or ValueError if a file cannot be read."""
    facts = read_object(folder / FACTS)[1]
    parts = {part: _load(files, folder) for part, files in facts["files"].items()}
    return Arrays(parts[TRAIN], parts[VALIDATION], BatchStructure(None), **facts["settings"])


def _save(arrays: Mapping[str, np.ndarray], folder: Path, part: str) -> dict[str, list[Any]]:
    """Writes the arrays of a part. Returns the file, the dtype and the shape of each array by the array's name, which
    can contain any sign."""
    files = {}
    for number, (name, array) in enumerate(arrays.items()):
        dtype = strings.dtype_name(array)
        file = f"{part}_{number}.npy"
        if dtype == strings.STRING:
            strings.save(array, folder / file)
        else:
            np.save(folder / file, array, allow_pickle=False)
        files[name] = [file, dtype, array.shape]
    return files


def _load(files: Mapping[str, Sequence[Any]], folder: Path) -> dict[str, Any]:
    return {name: _mapped(folder / file, dtype, tuple(shape)) for name, (file, dtype, shape) in files.items()}


def _mapped(path: Path, dtype: str, shape: tuple[int, ...]) -> Any:
    if dtype == strings.STRING:
        return strings.load(path, shape)
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    # NumPy writes a number type of another package, such as bfloat16, as plain bytes.
    return array if array.dtype.name == dtype else array.view(getattr(ml_dtypes, dtype))
