"""Publishes deltas atomically. Does not open a session.

The names `model.ckpt-N.delta…` and `.partial-delta` are reserved for this program.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

from parallax_runner.checkpoints.checkpoint_files import STEM, FileState, files_of, state_of
from parallax_runner.checkpoints.delta_files import (
    PARTIAL_DELTA,
    Delta,
    delta_path,
    next_number,
    remove_other_values,
    values_of,
)
from parallax_runner.checkpoints.publish import flush_file
from parallax_runner.files.plain import remove, replace
from parallax_runner.files.whole import write_whole


def partial_delta(folder: Path) -> Path:
    """Returns the prefix to which a delta is written before it is published."""
    return folder / PARTIAL_DELTA / STEM


def begin_delta(folder: Path) -> Path:
    """Creates an empty folder for a new delta. Returns the prefix to write to."""
    prefix = partial_delta(folder)
    remove(prefix.parent)
    prefix.parent.mkdir(parents=True)
    return prefix


def publish_delta(written: Path, base: Path, delta: Delta, states: Mapping[str, FileState]) -> Delta:
    """Moves the delta at `written`, whose files are flushed to disk, next to its checkpoint, in place of the delta
    before. Returns the delta with `files`, `number` and `saved_secs` filled in.

    `states` has the states of files that are already known, by the endings of their names. At each moment, the JSON
    file describes a whole delta: it is replaced after the new files have been moved, and before the old ones are
    removed.
    """
    files = {file.name.removeprefix(f"{written.name}."): file for file in files_of(written)}
    complete = dataclasses.replace(
        delta,
        files={ending: states.get(ending) or state_of(file) for ending, file in files.items()},
        number=next_number(base),
        saved_secs=time.time(),
    )
    prefix = values_of(base, complete)
    for ending, file in files.items():
        replace(file, prefix.with_name(f"{prefix.name}.{ending}"))
    flush_file(base.parent)
    write_whole(delta_path(base), complete.text())
    flush_file(base.parent)
    remove_other_values(base, complete)
    remove(written.parent)
    return complete
