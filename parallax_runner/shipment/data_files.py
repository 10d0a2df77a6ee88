"""Writes the data of a run to files and reads it in another process. Each kind of data has a module with the same
functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parallax_runner.data import stored_arrays
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.from_arrays import Arrays
from parallax_runner.files.plain import read_object
from parallax_runner.files.whole import write_whole
from parallax_runner.graph.tf_data import stored_pipeline
from parallax_runner.graph.tf_data.tf_dataset import TfDataset

KIND = "kind.json"
KINDS = {"arrays": (Arrays, stored_arrays), "tf.data": (TfDataset, stored_pipeline)}
OWN_OBJECT = "the data function returns an object of its own"


def why_data_stays(dataset: Dataset) -> str | None:
    """Returns the reason why another process must make the data again, or None if the data can travel."""
    kind = _kind_of(dataset)
    if kind is None:
        return str(getattr(dataset, "why_it_stays", OWN_OBJECT))
    reason: str | None = KINDS[kind][1].why_it_stays(dataset)
    return reason


def data_bytes(dataset: Dataset) -> int:
    """Returns the size in bytes of the files that `save_data` writes, without small ones."""
    return int(_module_of(dataset).size_bytes(dataset))


def graphs_of_data(dataset: Dataset) -> Iterator[Any]:
    """Yields the GraphDefs that the data consists of."""
    yield from _module_of(dataset).graphs(dataset)


def save_data(dataset: Dataset, folder: Path) -> None:
    """Writes the data into a folder that exists. Raises OSError if a file cannot be written."""
    _module_of(dataset).save(dataset, folder)
    write_whole(folder / KIND, json.dumps({"kind": _kind_of(dataset)}))


def load_data(folder: Path) -> Dataset:
    """Reads what `save_data` has written. Raises OSError or ValueError if a file cannot be read."""
    kind = read_object(folder / KIND)[1]["kind"]
    loaded: Dataset = KINDS[kind][1].load(folder)
    return loaded


def _kind_of(dataset: Dataset) -> str | None:
    return next((kind for kind, (made, _) in KINDS.items() if isinstance(dataset, made)), None)


def _module_of(dataset: Dataset) -> Any:
    kind = _kind_of(dataset)
    assert kind is not None, "the data cannot travel"
    return KINDS[kind][1]
