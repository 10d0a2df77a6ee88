"""Files with the outputs of a model for ranges of rows, named after their rows.

The ranges do not depend on the number of workers, so that a run that goes on can have another number of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parallax_runner.errors import ConfigError, ExportError, Setting
from parallax_runner.files.plain import object_in
from parallax_runner.files.whole import write_whole

FOLDER = "predictions"
ABOUT = "about.json"
# Workers share the files, so there are enough of them, and none is very small or large.
FEWEST_ROWS, MOST_ROWS, FILES = 1_024, 65_536, 256


@dataclass(frozen=True)
class About:
    """What the files of a folder contain: the outputs of the checkpoint `prefix` for all `rows` rows of `part`."""

    prefix: str
    part: str
    rows: int
    format: str

    def claim(self, folder: Path) -> None:
        """Makes the folder. Raises ConfigError if it has other predictions."""
        folder.mkdir(parents=True, exist_ok=True)
        found = object_in(folder / ABOUT)
        if found and found != asdict(self):
            other = ", ".join(f"{key} {found[key]}" for key, value in asdict(self).items() if found.get(key) != value)
            raise ConfigError(f"this folder has other predictions: {other}").about(
                Setting.of("run_dir", folder.parent), remedy="choose another folder"
            )
        write_whole(folder / ABOUT, json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True)
class File:
    """The file for rows [start, stop)."""

    path: Path
    start: int
    stop: int


def files_of(folder: Path, rows: int, format: str, batch_size: int) -> list[File]:
    """Returns all files, in the order of the rows. A file has whole batches, but for the last one."""
    wanted = max(FEWEST_ROWS, min(MOST_ROWS, -(-rows // FILES)))
    size = -(-wanted // batch_size) * batch_size
    starts = range(0, rows, size)
    return [
        File(folder / f"rows-{start:012d}-{min(start + size, rows):012d}.{format}", start, min(start + size, rows))
        for start in starts
    ]


def own_files(files: list[File], rank: int, ranks: int) -> list[File]:
    """Returns the rank's contiguous part of the files that are still missing. The sizes of the parts differ by at most
    one file."""
    missing = [file for file in files if not file.path.exists()]
    return missing[len(missing) * rank // ranks : len(missing) * (rank + 1) // ranks]


def write(file: File, columns: Mapping[str, np.ndarray]) -> None:
    """Writes a file under another name, and renames it. An array with more than one dimension becomes a column of
    lists, which CSV cannot have.

    Raises OSError if the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    table = pa.table({name: _column(values) for name, values in columns.items()})
    partial = file.path.with_name(f".{file.path.name}.{os.getpid()}")
    if file.path.suffix == ".csv":
        csv.write_csv(_flat(table), partial)
    else:
        parquet.write_table(table, partial)
    partial.replace(file.path)


def outputs_as_columns(outputs: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    """Returns the outputs for the first `rows` examples of a batch. A column of one number for each example loses its
    last dimension. Raises ExportError if an output has no row for each example."""
    found = {}
    for name, values in outputs.items():
        if values.ndim == 0 or len(values) < rows:
            raise ExportError(
                f"the output «{name}» has the shape {list(values.shape)}: it has no row for each of the {rows} "
                "examples of a batch, so it cannot be predicted"
            )
        of_rows = values[:rows]
        found[name] = of_rows[:, 0] if of_rows.shape[1:] == (1,) else of_rows
    return found


def _column(values: np.ndarray) -> Any:
    import pyarrow as pa

    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(_column(values.reshape(-1, *values.shape[2:])), values.shape[1])


def _flat(table: Any) -> Any:
    """Returns the table with a column for each element of a list column, such as `output_0`."""
    import pyarrow as pa

    columns = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        for key, values in _elements(name, column):
            columns[key] = values
    return pa.table(columns)


def _elements(name: str, column: Any) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa

    if not pa.types.is_fixed_size_list(column.type):
        yield name, column
        return
    size = column.type.list_size
    inner = column.flatten()
    for number in range(size):
        yield from _elements(f"{name}_{number}", inner.take(pa.array(np.arange(number, len(inner), size))))
