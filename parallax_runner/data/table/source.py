"""`data=table`: rows of CSV, JSON lines, Parquet, Arrow and TFRecord files, with columns that the configuration
describes."""

from __future__ import annotations

from typing import Any

from parallax_runner.data.dataset import Dataset
from parallax_runner.data.table.bad_rows import FAIL, BadRows
from parallax_runner.data.table.loading import table_dataset
from parallax_runner.data.table.row_order import FULL
from parallax_runner.data.table.sources import AUTO
from parallax_runner.data.table.stored_table import VALIDATION


def load(
    *,
    train: Any,
    columns: Any,
    seed: int,
    validation: Any = None,
    test: Any = None,
    partition: Any = None,
    format: str = AUTO,
    delimiter: str | None = None,
    header: Any = None,
    features: Any = None,
    shuffle: str = FULL,
    on_bad_row: str = FAIL,
    max_bad_rows: int = 1000,
    cache_dir: str | None = None,
    evaluated_part: str | None = VALIDATION,
    reads_rows: bool = True,
) -> Dataset:
    """Returns the rows of the files. The arguments are the settings of `data`; see `table_dataset`, which also says
    what is raised."""
    return table_dataset(
        train=train,
        validation=validation,
        test=test,
        columns=columns,
        features=features,
        partition=partition,
        shuffle=shuffle,
        bad_rows=BadRows(on_bad_row, max_bad_rows),
        seed=seed,
        cache_dir=cache_dir,
        evaluated_part=evaluated_part,
        reads_rows=reads_rows,
        format=format,
        delimiter=delimiter,
        header=header,
    )
