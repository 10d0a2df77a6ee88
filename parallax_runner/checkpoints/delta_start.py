"""Finds the newest values that a run has written: a checkpoint, and its delta if it has one. Does not open a
session."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

from parallax_runner.checkpoints.checkpoint_files import read_sidecar
from parallax_runner.checkpoints.delta_files import Delta, damage_of_delta, delta_path, named_base, read_delta
from parallax_runner.checkpoints.start import RESUME, Start, find_whole, is_checkpoint
from parallax_runner.errors import CheckpointError, Setting


class Found(NamedTuple):
    """Where values are found: in a checkpoint and, if it is not None, in the delta of this checkpoint."""

    start: Start
    delta: Delta | None


def find_state(resume: str, folder: Path) -> Found:
    """Finds the checkpoint that `find_whole` finds, and its delta. If the path names a checkpoint, its delta is left
    out. If the path is that of a delta (…/model.ckpt-30.delta), only this delta will do.

    Raises CheckpointError as `find_whole` does, and if the delta that the path names is damaged.
    """
    if resume == "auto":
        start = find_whole(resume, folder)
        return Found(start, None) if start.prefix is None else _with_delta(start, start.prefix)
    path = Path(resume)
    base = named_base(path)
    if base is not None:
        return Found(find_whole(str(base), folder), _whole_delta(base, path))
    start = find_whole(resume, folder)
    if start.prefix is None or is_checkpoint(path):
        return Found(start, None)
    return _with_delta(start, start.prefix)


def whole_delta(base: Path) -> Delta | None:
    """Returns the delta of a checkpoint, or None if it has none. Raises CheckpointError if the delta is damaged. If a
    run that still trains replaces the delta meanwhile, returns the new one."""
    delta = read_delta(base)
    while delta is not None and (fault := damage_of_delta(base, delta)) is not None:
        newer = read_delta(base)
        if newer == delta:
            raise CheckpointError(fault)
        delta = newer
    return delta


def _whole_delta(base: Path, named: Path) -> Delta | None:
    try:
        return whole_delta(base)
    except CheckpointError as error:
        raise CheckpointError(f"this delta is damaged: {error}.").about(
            Setting.of(RESUME, named),
            remedy=f"Its checkpoint remains, which is of step {read_sidecar(base).step}: {RESUME}={base}",
        ) from error


def _with_delta(start: Start, base: Path) -> Found:
    try:
        return Found(start, whole_delta(base))
    except CheckpointError as error:
        step = read_sidecar(base).step
        note = f"delta {delta_path(base)} is damaged: {error}; using {base} without it, which is of step {step}"
        return Found(dataclasses.replace(start, notes=(*start.notes, note)), None)
