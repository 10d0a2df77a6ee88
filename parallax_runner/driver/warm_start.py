"""Reads the checkpoint that `ckpt.warm_start` names, and adds to the plan what the run takes from it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from parallax_runner.analysis.variable_info import GrowingTable
from parallax_runner.checkpoints.checkpoint_files import read_sidecar, sidecar_path
from parallax_runner.checkpoints.warm_start import (
    FILE_NAME,
    KEY,
    ROWS,
    Stored,
    Wanted,
    WarmStart,
    chosen,
    notes_on,
    warm_start,
)
from parallax_runner.config.keras_files import is_keras_file
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, numbering_of
from parallax_runner.data.table.vocabularies import FRESH, Vocabulary, WithVocabularies, same_rows, vocabulary_in
from parallax_runner.driver.grown_tables import resized_tables
from parallax_runner.driver.keras_source import values_in
from parallax_runner.errors import CheckpointError, ConfigError, Setting
from parallax_runner.plan.plan import Plan
from parallax_runner.process.stage_times import stage

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


@stage("read the checkpoint of the warm start")
def with_warm_start(
    config: RunConfig, plan: Plan, single: SingleDeviceGraph, dataset: Dataset
) -> tuple[Plan, WarmStart | None]:
    """Returns the plan with notes on the warm start, and what the run takes, or None if it starts otherwise.

    A checkpoint in `ckpt.dir` wins, because it means that this run has begun already.

    Raises ConfigError or CheckpointError if the checkpoint cannot be read, or does not fit.
    """
    from parallax_runner.checkpoints.start import newest_whole

    path, ckpt = config.ckpt.warm_start, config.ckpt
    if path is None or not ckpt.enabled:
        return plan, None
    own = None if ckpt.resume == "never" else newest_whole(Path(ckpt.folder)).prefix
    if own is not None:
        note = f"{own} is a checkpoint of this run, so {KEY}={path} is not read again"
        return dataclasses.replace(plan, notes=(*plan.notes, note)), None
    read = _from_keras_file if is_keras_file(path) else _from_checkpoint
    notes, found = read(config, plan, single, dataset)
    return dataclasses.replace(plan, notes=(*plan.notes, *notes)), found


def _from_checkpoint(
    config: RunConfig, plan: Plan, single: SingleDeviceGraph, dataset: Dataset
) -> tuple[Sequence[str], WarmStart]:
    """Returns notes, and what the run takes from a checkpoint. Raises ConfigError or CheckpointError if it does not
    fit."""
    from parallax_runner.analysis.growing import growing_tables
    from parallax_runner.checkpoints.checkpoint_ops import stored_in, value_in
    from parallax_runner.checkpoints.object_names import tensors_by_name
    from parallax_runner.checkpoints.start import find_whole

    prefix = find_whole(str(config.ckpt.warm_start), Path(config.ckpt.folder), key=KEY).prefix
    assert prefix is not None  # find_whole raises an error if there is none
    prefix = Path(os.path.realpath(prefix.parent)) / prefix.name
    notes_on_vocabulary = _notes_on_vocabulary(config, dataset, prefix)
    growing = growing_tables(single)
    tables = _by_key(config, plan, dataset, prefix, growing)
    rows_of = {one.variable: one.file for one in tables}
    stored = stored_in(prefix)
    tensors = tensors_by_name(prefix, stored)
    named = {name: stored[tensor] for name, tensor in tensors.items()}
    wanted = _with_derived(_wanted(plan, single, growing), growing)
    resized = resized_tables(
        str(prefix),
        growing,
        chosen(str(prefix), named, wanted, config.ckpt.take),
        named,
        wanted,
        lambda name: value_in(prefix, tensors[name]),
    )
    found = warm_start(str(prefix), named, wanted, config.ckpt.take, rows_of | resized.rows, resized.values)
    notes = (*notes_on(found), *(one.note for one in tables), *resized.notes, *notes_on_vocabulary)
    taken = tuple(dataclasses.replace(one, source=tensors[one.source]) for one in found.taken)
    files = resized.files | {one.file: one.rows for one in tables}
    return notes, dataclasses.replace(found, taken=taken, files=files)


def _from_keras_file(
    config: RunConfig, plan: Plan, single: SingleDeviceGraph, dataset: Dataset
) -> tuple[Sequence[str], WarmStart]:
    """Returns notes, and what the run takes from a file of Keras, with the values that are taken. Its variables have
    the names of the model's variables. Raises ConfigError or CheckpointError if the file does not fit."""
    from parallax_runner.analysis.growing import growing_tables

    path, take = str(config.ckpt.warm_start), config.ckpt.take
    if take.rows:
        raise ConfigError("a file of Keras has no vocabulary, so rows cannot be taken by their strings").about(
            Setting(ROWS, take.rows[0])
        )
    values = values_in(Path(path), single, key=KEY)
    stored = {name: Stored(value.shape, value.dtype.name) for name, value in values.items()}
    found = warm_start(path, stored, _wanted(plan, single, growing_tables(single)), take)
    taken = {one.source: values[one.source] for one in found.taken}
    return notes_on(found), dataclasses.replace(found, values=taken)


@dataclass(frozen=True)
class _Table:
    """A table whose rows are taken by key. `file` gets the name of each old row."""

    variable: str
    file: str
    rows: np.ndarray
    note: str


def _by_key(
    config: RunConfig, plan: Plan, dataset: Dataset, prefix: Path, growing: Iterable[GrowingTable]
) -> list[_Table]:
    """Returns the tables that `ckpt.take.rows` names.

    Raises ConfigError if an item names no variable or no column with a vocabulary, or a table whose vocabulary grows.
    """
    with_keys = {table.variable for table in growing}
    shapes = {one.name: one.shape for one in plan.variables}
    found = []
    for number, item in enumerate(config.ckpt.take.rows):
        variable, _, column = item.rpartition(":")
        if variable not in shapes:
            raise ConfigError("expected VARIABLE:COLUMN with a variable of the model").about(Setting(ROWS, item))
        if variable in with_keys:
            raise ConfigError(
                f"the vocabulary of «{variable}» grows, so its rows are taken by their keys without this setting"
            ).about(Setting(ROWS, item))
        old, new = _vocabularies(column, item, dataset, prefix)
        rows = same_rows(old, new, shapes[variable][0])
        kept = int((rows[new.first :] != FRESH).sum())
        note = (
            f"warm start: «{variable}» takes the rows of {kept} strings of «{column}»; {len(new.words) - kept} are "
            f"new, and {len(old.words) - kept} are gone"
        )
        found.append(_Table(variable, f"warm_start_rows_{number}.npy", rows, note))
    return found


def _columns_with_vocabulary(dataset: Dataset) -> list[str]:
    return dataset.columns_with_vocabulary() if isinstance(dataset, WithVocabularies) else []


def _vocabularies(column: str, item: str, dataset: Dataset, prefix: Path) -> tuple[Vocabulary, Vocabulary]:
    new = dataset.vocabulary_of(column) if isinstance(dataset, WithVocabularies) else None
    if new is None:
        told = ", ".join(_columns_with_vocabulary(dataset)) or "none"
        raise ConfigError(f"expected a column of the data that has a vocabulary; there is {told}").about(
            Setting(ROWS, item)
        )
    try:
        old = vocabulary_in(prefix.parent, column)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the vocabularies of the checkpoint cannot be read: {error}").about(
            Setting(KEY, str(prefix))
        ) from error
    if old is None:
        raise ConfigError(f"beside checkpoint {prefix} there is no vocabulary of «{column}»").about(Setting(ROWS, item))
    return old, new


def _notes_on_vocabulary(config: RunConfig, dataset: Dataset, prefix: Path) -> list[str]:
    """Returns a sentence if rows of the checkpoint's tables may belong to other words than those of this run. A
    checkpoint of plain TensorFlow does not tell.

    Raises CheckpointError for a damaged sidecar, and if the configuration does not say which rows to take.
    """
    if not _has_other_vocabulary(dataset, prefix):
        return []
    take = config.ckpt.take
    if not (take.rows or take.include or take.exclude):
        raise CheckpointError(
            "the checkpoint comes from a run with another vocabulary, so the rows of its tables belong to other strings"
        ).about(
            Setting(KEY, str(prefix)),
            remedy="add ckpt.take.rows=[VARIABLE:COLUMN] to take rows by their strings, or ckpt.take.exclude",
        )
    by_key = [item.rpartition(":")[2] for item in take.rows]
    if take.rows and set(by_key) >= set(_columns_with_vocabulary(dataset)):
        return []
    return [
        "warm start: the checkpoint has another vocabulary than this run. Rows of tables that are not in "
        "ckpt.take.rows are taken by number, so a row that is taken can belong to another word"
    ]


def _has_other_vocabulary(dataset: Dataset, prefix: Path) -> bool:
    if not sidecar_path(prefix).exists():
        return False
    old, new = read_sidecar(prefix).numbering, numbering_of(dataset)
    return bool(old) and bool(new) and old != new


def leave_warm_start(start: WarmStart | None, run_dir: Path) -> None:
    """Writes what the run takes for its workers, or removes what an earlier run in the folder has left. Raises OSError
    if that is not possible."""
    if start is None:
        (run_dir / FILE_NAME).unlink(missing_ok=True)
        return
    if start.values:
        from parallax_runner.checkpoints.converted import write_converted

        prefix = write_converted(run_dir, start.values, origin=Path(start.prefix).absolute())
        start = dataclasses.replace(start, prefix=str(prefix))
    start.save(run_dir)


def _wanted(plan: Plan, single: SingleDeviceGraph, growing: Iterable[GrowingTable]) -> list[Wanted]:
    """Returns the saved variables. `growing` are the tables whose vocabularies grow. Besides slots, scalars without a
    gradient belong to the optimizer: its step count, its learning rate, which Keras names so, and its powers of decay.
    A scalar of a Keras model itself does not, even if it is frozen."""
    owners = {slot: variable.name for variable in plan.variables for slot in variable.slots}
    map_of = _rows_of_maps(growing)
    used_by_model = {gradient.variable for gradient in single.gradients} | _of_layers(single)
    found: dict[str, Wanted] = {}
    for one in single.variables:
        is_counter = not one.full_shape and one.name not in used_by_model and one.full_name not in used_by_model
        if one.saved:
            found[one.full_name] = Wanted(
                one.full_name,
                tuple(one.full_shape),
                one.dtype,
                is_of_optimizer=one.name in owners or is_counter,
                is_set=is_counter and one.full_name.endswith("/learning_rate"),
                owner=owners.get(one.name, one.full_name),
                map_of=map_of.get(one.name, ""),
            )
    return list(found.values())


def _with_derived(wanted: Iterable[Wanted], growing: Iterable[GrowingTable]) -> list[Wanted]:
    """Marks the variables of maps that a checkpoint of a table without rules does not have."""
    derived = {name for table in growing for name in table.variables_of_rules}
    return [dataclasses.replace(one, is_derived=one.name in derived) for one in wanted]


def _rows_of_maps(growing: Iterable[GrowingTable]) -> dict[str, str]:
    """Returns the rows to which the variables of maps belong."""
    return {name: table.variable for table in growing for name in table.map_variables}


def _of_layers(single: SingleDeviceGraph) -> set[str]:
    """Returns the names of the variables of a Keras model's layers."""
    return set() if single.keras_model is None else {variable.path for variable in single.keras_model.variables}
