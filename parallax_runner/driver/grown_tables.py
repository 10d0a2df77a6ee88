"""Takes the tables of vocabularies that grow from the checkpoint of another run, whose tables can have other
capacities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from parallax_runner.analysis.variable_info import GrowingTable
from parallax_runner.checkpoints.warm_start import KEY, Stored, Wanted
from parallax_runner.errors import CheckpointError, Setting

if TYPE_CHECKING:
    from parallax_runner.graph.growing.key_map import MapShape

# Returns the value of a tensor of the checkpoint.
Read = Callable[[str], np.ndarray]


@dataclass
class Resized:
    """The tables that have another capacity than in the checkpoint. `rows` and `values` are names of files: those of
    rows by the variables of tables, and those of whole values by the variables of maps. `files` has their contents."""

    rows: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    files: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def resized_tables(
    prefix: str,
    tables: Iterable[GrowingTable],
    chosen: Mapping[str, str],
    stored: Mapping[str, Stored],
    wanted: Iterable[Wanted],
    read: Read,
) -> Resized:
    """Returns how the tables are taken whose capacity differs from that in the checkpoint `prefix`. `chosen` has the
    tensor of each variable that is taken.

    Raises CheckpointError if a bucket of a table has too few rows for its keys.
    """
    from parallax_runner.graph.growing.key_map import MapShape
    from parallax_runner.graph.growing.resized_map import moved_rows, resized_map

    shapes, found = {one.name: one.shape for one in wanted}, Resized()
    for number, table in enumerate(tables):
        keys, index, fill, _ = table.map_variables
        is_alike = all(stored[chosen[name]].shape == shapes[name] for name in (keys, table.variable) if name in chosen)
        if table.variable not in chosen or is_alike:
            continue
        old = _map_shape(stored[chosen[keys]], stored[chosen[table.variable]])
        new = MapShape(table.places, table.has_overflow_rows)
        filled = read(chosen[fill])
        _check_room(prefix, table, filled, new)
        moved_keys, moved_index = resized_map(read(chosen[keys]), filled, new)
        for name, array in ((keys, moved_keys), (index, moved_index)):
            found.values[name] = f"warm_start_map_{number}_{name.rpartition('/')[2]}.npy"
            found.files[found.values[name]] = array
        found.rows[table.variable] = f"warm_start_grown_rows_{number}.npy"
        found.files[found.rows[table.variable]] = moved_rows(filled, old, new)
        found.notes.append(
            f"warm start: «{table.layer}» takes the rows of {filled.sum():,} keys from a table with "
            f"{old.places} rows a bucket into one with {new.places}"
        )
    return found


def _map_shape(keys: Stored, rows: Stored) -> MapShape:
    """Returns the shape of a map in a checkpoint, from its keys and the rows of its table."""
    from parallax_runner.graph.growing.key_map import MapShape

    buckets, places = keys.shape
    return MapShape(places, has_overflow_rows=rows.shape[0] > buckets * places)


def _check_room(prefix: str, table: GrowingTable, fill: np.ndarray, new: MapShape) -> None:
    most = int(fill.max())
    if most > new.places:
        raise CheckpointError(
            f"a bucket of «{table.layer}» has {most} keys in the checkpoint, but room for {new.places} in the model"
        ).about(
            Setting(KEY, prefix),
            remedy=f"give the layer a capacity of at least {len(fill) * most}, or, to start it afresh, add "
            f"ckpt.take.exclude=['{table.variable}']",
        )
