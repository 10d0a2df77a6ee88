"""`data=criteo`: clicks in the layout of Criteo's files, a label, integers and hexadecimal strings without a header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parallax_runner.data.dataset import Dataset
from parallax_runner.data.table.bad_rows import FAIL, BadRows
from parallax_runner.data.table.loading import table_dataset
from parallax_runner.data.table.row_order import FULL
from parallax_runner.data.table.sources import TSV
from parallax_runner.data.table.stored_table import VALIDATION
from parallax_runner.errors import ConfigError, Setting

LABEL, DENSE, CATEGORICAL = "label", "dense", "categorical"


def load(
    *,
    train: Any,
    dense_features: int,
    cardinalities: Sequence[int],
    seed: int,
    validation: Any = None,
    test: Any = None,
    partition: Any = None,
    shuffle: str = FULL,
    on_bad_row: str = FAIL,
    max_bad_rows: int = 1000,
    cache_dir: str | None = None,
    evaluated_part: str | None = VALIDATION,
    reads_rows: bool = True,
) -> Dataset:
    """Returns the rows of tab-separated files with the features `dense` (float32 [dense_features]), `categorical`
    (int64 [len(cardinalities)]) and `label` (float32, 0 or 1).

    A dense feature is log(1 + x), and 0 for a blank cell or a negative x. The strings of categorical feature f are
    hashed to ids below `cardinalities[f]`; a blank cell is hashed as the empty string. The other arguments and the
    errors are those of `data=table`.
    """
    _check_sizes(dense_features, cardinalities)
    integers = [f"I{number + 1}" for number in range(dense_features)]
    strings = [f"C{number + 1}" for number in range(len(cardinalities))]
    columns: dict[str, Any] = {LABEL: "label"}
    columns |= {name: {"number": {"fill": 0, "log": True}} for name in integers}
    columns |= {name: {"category": {"hash": buckets}} for name, buckets in zip(strings, cardinalities, strict=True)}
    return table_dataset(
        train=train,
        validation=validation,
        test=test,
        partition=partition,
        format=TSV,
        header=[LABEL, *integers, *strings],
        columns=columns,
        features={DENSE: integers, CATEGORICAL: strings},
        shuffle=shuffle,
        bad_rows=BadRows(on_bad_row, max_bad_rows),
        seed=seed,
        cache_dir=cache_dir,
        evaluated_part=evaluated_part,
        reads_rows=reads_rows,
    )


def _check_sizes(dense_features: int, cardinalities: Sequence[int]) -> None:
    if dense_features < 1:
        raise ConfigError("expected 1 or more.").about(Setting.of("data.dense_features", dense_features))
    if not cardinalities:
        raise ConfigError("expected at least one categorical feature.").about(Setting("data.cardinalities", "[]"))
    for number, buckets in enumerate(cardinalities):
        if type(buckets) is not int or buckets < 1:
            raise ConfigError("expected an integer, at least 1.").about(
                Setting.of("data.cardinalities", buckets, item=number)
            )
