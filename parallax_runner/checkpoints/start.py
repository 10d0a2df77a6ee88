"""Finds the checkpoint that a run starts from: the newest undamaged checkpoint. Does not open a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parallax_runner.checkpoints.checkpoint_files import (
    STEM,
    damage,
    files_of,
    list_checkpoints,
    sidecar_path,
    without_sidecar,
)
from parallax_runner.checkpoints.delta_files import named_base
from parallax_runner.checkpoints.publish import tidy
from parallax_runner.checkpoints.state_file import newest_named
from parallax_runner.config.frozen import ckpt_dir_of
from parallax_runner.errors import CheckpointError, Setting
from parallax_runner.files.literal_path import is_pattern
from parallax_runner.files.plain import reason_of

RESUME = "ckpt.resume"


@dataclass(frozen=True)
class Start:
    """The starting point of a run. `prefix` is None for a fresh start. `notes` are messages for the user, for example
    about newer, damaged checkpoints."""

    prefix: Path | None
    notes: tuple[str, ...] = ()


def find_start(resume: str, folder: Path) -> Start:
    """Finds the checkpoint that a run starts from, and verifies the checksums of all its files.

    `resume` is `never`, `auto` (the newest checkpoint in `folder`, after `tidy`), or a path to a checkpoint, to a
    folder of checkpoints or to a run directory. Raises CheckpointError if there is no checkpoint at the path, if the
    named checkpoint is damaged, or if all checkpoints are damaged.
    """
    return _found(resume, folder, _newest_of, RESUME, needs_sidecar=True)


def find_whole(path: str, folder: Path, *, key: str = RESUME) -> Start:
    """Finds the same checkpoint as `find_start`, and changes nothing in `folder`, to which another run may write. `key`
    is the setting that has the value `path`. At a path, a checkpoint of TensorFlow without a sidecar will do, and the
    newest one of a folder in which TensorFlow has named it (`tf.train.CheckpointManager`)."""
    return _found(path, folder, newest_whole, key, needs_sidecar=False)


def _found(resume: str, folder: Path, newest_of: Callable[[Path], Start], key: str, *, needs_sidecar: bool) -> Start:
    if resume == "never":
        return Start(None)
    try:
        if resume == "auto":
            return newest_of(folder)
        return _start_at(Path(resume), resume, key, needs_sidecar=needs_sidecar)
    except OSError as error:
        about = Setting.of("ckpt.dir", folder) if resume == "auto" else Setting(key, resume)
        raise CheckpointError(f"this path cannot be read: {reason_of(error)}").about(about) from error


def _newest_of(folder: Path) -> Start:
    notes = tidy(folder)
    found = newest_whole(folder)
    return Start(found.prefix, (*notes, *found.notes))


def is_checkpoint(path: Path) -> bool:
    """Returns whether there are files of a checkpoint with this prefix."""
    return os.path.lexists(sidecar_path(path)) or bool(files_of(path))


def _start_at(path: Path, resume: str, key: str, *, needs_sidecar: bool) -> Start:
    base = named_base(path)
    if base is not None:
        raise CheckpointError("a delta has no slots of the optimizer, so no training can begin with it").about(
            Setting.of(key, resume), remedy=f"Use the checkpoint to which it belongs: {key}={base}"
        )
    if is_checkpoint(path):
        return Start(_whole(path, resume, key, needs_sidecar=needs_sidecar))
    for candidate in (path, path / "ckpt", *_named_by(path)):
        # A folder of plain TensorFlow has no sidecars, and TensorFlow's own file tells which checkpoint is the newest.
        named = None if needs_sidecar or list_checkpoints(candidate) else newest_named(candidate)
        found = newest_whole(candidate) if named is None else Start(named)
        if found.prefix is not None:
            return found
    raise CheckpointError(
        "there is no checkpoint at this path. Expected the prefix of a checkpoint "
        f"(…/{STEM}-300), a folder of checkpoints, or a run directory"
    ).about(Setting.of(key, resume))


def _named_by(run_dir: Path) -> Iterator[Path]:
    """Yields the checkpoint folder that the run's configuration names, if there is one."""
    folder = ckpt_dir_of(run_dir)
    if folder is not None:
        yield Path(folder)


def newest_whole(folder: Path) -> Start:
    """Returns the newest undamaged checkpoint in a folder, or a Start whose prefix is None if the folder contains no
    checkpoint.

    Raises CheckpointError if all checkpoints are damaged, since a fresh start would discard checkpoints that may be
    repairable. Raises OSError if the folder cannot be read.
    """
    damaged: list[tuple[Path, str]] = []
    lost = without_sidecar(folder)
    for prefix in reversed([*list_checkpoints(folder), *lost]):
        fault = damage(prefix)
        if fault is None:
            notes = [f"checkpoint {bad} is damaged: {why}; using {prefix} instead" for bad, why in damaged]
            return Start(prefix, tuple(notes))
        damaged.append((prefix, fault))
    if damaged:
        faults = "; ".join(f"{bad.name}: {why}" for bad, why in damaged)
        move = f"move {_names(lost)} to another folder if another program wrote it, " if lost else ""
        raise CheckpointError(
            f"all checkpoints in {folder} are damaged ({faults}). Restore a checkpoint, {move}or start afresh with "
            "ckpt.resume=never"
        )
    return Start(None)


def _names(prefixes: Sequence[Path]) -> str:
    return ", ".join(f"{prefix.name}.*" for prefix in prefixes)


def _whole(prefix: Path, resume: str, key: str, *, needs_sidecar: bool) -> Path:
    if is_pattern(prefix.name):
        raise CheckpointError(f"TensorFlow treats «{prefix.name}» as a pattern.").about(
            Setting.of(key, resume), remedy="Rename the files of this checkpoint to a name without * ? [ \\"
        )
    # Checkpoints that plain TensorFlow has written have no sidecar, so a run cannot go on where they were written.
    has_sidecar = os.path.lexists(sidecar_path(prefix))
    fault = damage(prefix) if needs_sidecar or has_sidecar else None
    if fault is None:
        return prefix
    try:
        other = newest_whole(prefix.parent).prefix
    except CheckpointError:
        other = None
    remedy = "There is no undamaged checkpoint in the same folder"
    if other is not None:
        remedy = f"Use the newest undamaged checkpoint in the same folder: {key}={other}"
    elif not has_sidecar:
        remedy += f". If plain TensorFlow wrote this one, begin a new run with ckpt.warm_start={resume}"
    about = Setting(key, resume)
    raise CheckpointError(f"this checkpoint is damaged: {fault}.").about(about, remedy=remedy)
