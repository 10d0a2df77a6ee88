"""From the settings of a table to its dataset: columns, files, arrays, and what the columns learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from parallax_runner.config.suggestions import nearest
from parallax_runner.data.table.bad_rows import BadRows
from parallax_runner.data.table.columns.column import Column, columns_of_the_loss, raw_columns
from parallax_runner.data.table.columns.kinds import columns_of
from parallax_runner.data.table.convert import Conversion
from parallax_runner.data.table.fitted import fitted
from parallax_runner.data.table.partition import Partition
from parallax_runner.data.table.row_order import SHUFFLES
from parallax_runner.data.table.sources import AUTO, Sources
from parallax_runner.data.table.stacks import stacks_of
from parallax_runner.data.table.stored_table import TEST, TRAIN, VALIDATION, StoredTable
from parallax_runner.data.table.table_dataset import TableDataset
from parallax_runner.data.table.unread_table import UnreadTable
from parallax_runner.errors import ConfigError, DataError, Setting


def table_dataset(
    *,
    train: Any,
    validation: Any,
    test: Any,
    columns: Any,
    features: Any,
    partition: Any,
    shuffle: str,
    bad_rows: BadRows,
    seed: int,
    cache_dir: str | None,
    format: str = AUTO,
    delimiter: str | None = None,
    header: Any = None,
    evaluated_part: str | None = VALIDATION,
    reads_rows: bool = True,
) -> TableDataset | UnreadTable:
    """Returns the rows of the files `train`, with a feature for each column, or for each list in `features`.

    `train`, `validation` and `test` are paths of files or folders, globs, or lists of these. `partition` has the
    arguments of `Partition`. `columns` is as in `columns_of`, `features` as in `stacks_of`. `seed` is that of the
    order. Rows need labels, weights and groups only for training and in `evaluated_part`; None: only for training.
    Without `reads_rows`, rows that are not converted are not read.

    Raises ConfigError for a wrong value, before anything is read, and DataError if the files cannot be read, have bad
    rows, or have cells that their column does not accept.
    """
    described = columns_of(columns)
    stacks = stacks_of(features, described)
    if shuffle not in SHUFFLES:
        raise ConfigError(f"expected {', '.join(SHUFFLES[:-1])} or {SHUFFLES[-1]}").about(
            Setting.of("data.shuffle", shuffle)
        )
    conversion = Conversion.of(
        Sources(
            _paths({TRAIN: train, VALIDATION: validation, TEST: test}),
            format,
            delimiter,
            None if header is None else _texts("data.header", header),
        ),
        raw_columns(described),
        _partition(partition),
        bad_rows,
        cache_dir=cache_dir,
        may_lack=columns_of_the_loss(described),
    )
    if not reads_rows and not conversion.is_done():
        conversion.check()
        return UnreadTable(described, stacks, conversion.parts)
    table = conversion.table()
    _check_columns_of_the_loss(table, described, evaluated_part)
    found = fitted(table, described, bad_rows=bad_rows, cache_dir=cache_dir, evaluated_part=evaluated_part)
    dataset = TableDataset(table, described, stacks, found, shuffle=shuffle, seed=seed)
    _check_parts(partition or {}, {VALIDATION: dataset.validation_size, TEST: dataset.test_size})
    return dataset


def _check_columns_of_the_loss(table: StoredTable, columns: Sequence[Column], part: str | None) -> None:
    """Raises DataError if the evaluated part lacks a column that the loss needs."""
    absent = () if part is None else table.absent.get(part, ())
    for column in columns:
        if column.name in absent:
            raise DataError(f"the files of data.{part} lack this column, which an evaluation needs.").about(
                Setting(f"data.columns.{column.name}", column.kind),
                remedy="Add the column, or use action=predict, which needs none",
            )


def _check_parts(partition: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Raises DataError if no row is in a part that the settings name. Otherwise no message says that it is empty."""
    for key in ("fractions", "bounds"):
        for part, value in (partition.get(key) or {}).items():
            if not sizes[part]:
                raise DataError("no row is in this part.").about(
                    Setting.of(f"data.partition.{key}.{part}", value), remedy="Correct the value, or leave it out."
                )


def _paths(given: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Returns the paths of the parts. Only the training must have some."""
    return {part: _texts(f"data.{part}", one) for part, one in given.items() if part == TRAIN or one is not None}


def _texts(key: str, given: Any) -> tuple[str, ...]:
    """Returns a string or a list of strings as a tuple."""
    texts = (given,) if isinstance(given, str) else given
    is_list = isinstance(texts, Sequence) and len(texts) > 0
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise ConfigError("expected a string or a list of strings").about(Setting.of(key, given))
    return tuple(texts)


def _partition(given: Any) -> Partition | None:
    if given is None:
        return None
    known = [one.name for one in dataclasses.fields(Partition)]
    if not isinstance(given, Mapping):
        raise ConfigError("expected settings such as {fractions: {validation: 0.1}}").about(
            Setting.of("data.partition", given)
        )
    for word, value in given.items():
        if word not in known:
            meant = nearest(str(word), known)
            remedy = None if meant is None else f"Did you mean data.partition.{meant}?"
            raise ConfigError(f"expected one of {', '.join(known)}.").about(
                Setting.of(f"data.partition.{word}", value), remedy=remedy
            )
    # Hydra's mappings are no JSON, and the cache's key is made of JSON.
    settings: dict[str, Any] = {
        str(word): dict(value) if isinstance(value, Mapping) else value for word, value in given.items()
    }
    return Partition(**settings)
