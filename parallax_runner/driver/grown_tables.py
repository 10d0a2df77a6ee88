"""Takes the tables of vocabularies that grow from the checkpoint of another run, whose tables can have other
capacities and rules."""

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
    from parallax_runner.graph.growing.resized_map import StoredMap

# Returns the value of a tensor of the checkpoint.
Read = Callable[[str], np.ndarray]


@dataclass
class Resized:
    """The tables that have another capacity or other rules than in the checkpoint. `rows` and `values` are names of
    files: those of rows by the variables of tables, and those of whole values by the variables of maps. `files` has
    their contents."""

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
    """Returns how the tables are taken whose capacity or rules differ from those in the checkpoint `prefix`. `chosen`
    has the tensor of each variable that is taken.

    Raises CheckpointError if a bucket of a table has too few rows for its keys.
    """
    from parallax_runner.graph.growing.key_map import MapShape
    from parallax_runner.graph.growing.resized_map import StoredMap, moved_rows, resized_map

    shapes, found = {one.name: one.shape for one in wanted}, Resized()
    for number, table in enumerate(tables):
        if table.variable not in chosen:
            continue
        scope = chosen[table.map_variables[0]].rpartition("/")[0]
        old = _map_shape(scope, stored, stored[chosen[table.variable]])
        new = MapShape(table.places, table.has_overflow_rows, table.min_count, table.unused_steps, table.every_steps)
        has_same_rows = stored[chosen[table.variable]].shape == shapes[table.variable]
        if has_same_rows and old.variables == new.variables:
            continue
        needed = old.variables.keys() - {"index", "free"}
        stored_map = StoredMap(old, {name: read(f"{scope}/{name}") for name in needed})
        _check_room(prefix, table, stored_map, new)
        for name, array in zip(table.map_variables, resized_map(stored_map, new).values(), strict=True):
            found.values[name] = f"warm_start_map_{number}_{name.rpartition('/')[2]}.npy"
            found.files[found.values[name]] = array
        found.rows[table.variable] = f"warm_start_grown_rows_{number}.npy"
        found.files[found.rows[table.variable]] = moved_rows(stored_map, new)
        found.notes.append(
            f"warm start: «{table.layer}» takes the rows of {stored_map.has_key.sum():,} keys from a table with "
            f"{old.places} rows a bucket into one with {new.places}"
        )
    return found


def _map_shape(scope: str, stored: Mapping[str, Stored], rows: Stored) -> MapShape:
    """Returns the shape of a map in a checkpoint, whose variables have names in `scope`, and of the rows of its table.
    What it says about rules is only whether there are any."""
    from parallax_runner.graph.growing.key_map import MapShape

    buckets, all_places = stored[f"{scope}/keys"].shape
    admits, evicts = (f"{scope}/{name}" in stored for name in ("counts", "last_used"))
    waiting_places = stored[f"{scope}/counts"].shape[1] if admits else 0
    places = all_places - waiting_places
    return MapShape(places, rows.shape[0] > buckets * places, 2 if admits else 1, int(evicts), int(evicts))


def _check_room(prefix: str, table: GrowingTable, old: StoredMap, new: MapShape) -> None:
    of_rows = int(old.has_key.sum(axis=1).max())
    waiting = int(old.waits.sum(axis=1).max()) if new.admits else 0
    most = max(of_rows, waiting)
    if most > new.places:
        raise CheckpointError(
            f"a bucket of «{table.layer}» has {most} keys in the checkpoint, but room for {new.places} in the model"
        ).about(
            Setting(KEY, prefix),
            remedy=f"give the layer a capacity of at least {len(old.has_key) * most}, or, to start it afresh, add "
            f"ckpt.take.exclude=['{table.variable}']",
        )
