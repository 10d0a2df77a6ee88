"""Publishes checkpoints in a folder atomically, and deletes old checkpoints.

Does not open a session. The names `model.ckpt-N.…`, `.partial-N` and `.forgotten-N` are reserved for this program: any
file or folder with such a name is removed if it is in the way. Everything else in the folder is left unchanged.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from parallax_runner.checkpoints.checkpoint_files import (
    FORGOTTEN,
    PARTIAL,
    STEM,
    FileState,
    Sidecar,
    fault_of_file,
    files_of,
    names_in,
    newest_write_number,
    prefix_of,
    read_sidecar,
    readable,
    sidecar_path,
    state_of,
    step_in,
    step_of,
)
from parallax_runner.checkpoints.delta_files import delta_bytes, remove_delta, tidy_deltas
from parallax_runner.errors import CheckpointError, Setting
from parallax_runner.files.plain import reason_of, remove, replace


def prepare(folder: Path) -> tuple[str, ...]:
    """Creates the folder, and calls `tidy` on it. Returns the notes from `tidy`. Raises CheckpointError if the folder
    is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return tidy(folder)
    except OSError as error:
        raise CheckpointError(f"checkpoints cannot be written to this folder: {reason_of(error)}.").about(
            Setting.of("ckpt.dir", folder), remedy="Choose another folder, or turn checkpoints off with ckpt=off"
        ) from error


def begin(folder: Path, step: int) -> Path:
    """Creates an empty folder for a new checkpoint, next to the existing checkpoints. Returns the prefix to write
    to."""
    prefix = partial_prefix(folder, step)
    remove(prefix.parent)
    prefix.parent.mkdir(parents=True)
    return prefix


def partial_prefix(folder: Path, step: int) -> Path:
    """Returns the prefix to which a checkpoint is written before it is published."""
    return folder / f"{PARTIAL}{step}" / STEM


def flush(written: Path) -> None:
    """Flushes TensorFlow's files to disk."""
    for file in files_of(written):
        flush_file(file)


def flush_file(path: Path) -> None:
    """Flushes a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(written: Path, folder: Path, sidecar: Sidecar, states: Mapping[str, FileState] | None = None) -> Path:
    """Moves the checkpoint at `written` (see `begin` and `flush`) into place, and returns its new prefix.

    `states` has the states of files that are already known, by the endings of their names. The other files are read.
    Fills in the sidecar's `files`, `write_number` and `saved_secs`. The sidecar is moved last, because a checkpoint
    without a sidecar does not count as a checkpoint. Everything is flushed to disk before the first move. If the
    partial folder contains a sidecar, the folder is complete. `tidy` can then finish the move, even if an older
    checkpoint of the same step is already partly replaced.
    """
    endings = {file.name.removeprefix(f"{written.name}."): file for file in files_of(written)}
    known = states or {}
    complete = dataclasses.replace(
        sidecar,
        files={ending: known.get(ending) or state_of(file) for ending, file in endings.items()},
        write_number=newest_write_number(folder) + 1,
        saved_secs=time.time(),
    )
    sidecar_path(written).write_text(complete.text(), encoding="utf-8")
    for path in (sidecar_path(written), written.parent, folder):
        flush_file(path)
    return _move(written.parent, folder, complete)


def tidy(folder: Path) -> tuple[str, ...]:
    """Removes checkpoints and deltas that killed processes left partly written or partly deleted.

    A checkpoint that was written in full is moved into place. No other process may save checkpoints in the folder at
    the same time. Returns notes for the user about leftovers that are damaged or cannot be removed. Raises OSError if
    the folder cannot be read.
    """
    notes = []
    for name in names_in(folder):
        path = folder / name
        try:
            if step_in(PARTIAL, name) is not None:
                note = _finish_writing(path, folder)
                notes += [] if note is None else [note]
            elif (step := step_in(FORGOTTEN, name)) is not None:
                _finish_deleting(path, prefix_of(folder, step))
        except OSError as error:
            notes.append(f"{path} was left by a killed run and cannot be removed: {reason_of(error)}")
    try:
        tidy_deltas(folder)
    except OSError as error:
        notes.append(f"{error.filename} was left by a killed run and cannot be removed: {reason_of(error)}")
    return tuple(notes)


def forget_old(folder: Path, keep: int | None, spare: Collection[int] = (), *, keep_bytes: int | None = None) -> None:
    """Deletes all checkpoints except the newest `keep` checkpoints and the checkpoints of the steps in `spare`. Of the
    newest ones, keeps only those that have at most `keep_bytes` bytes together. If a limit is None, it deletes nothing.

    Checkpoints whose sidecar cannot be read are neither deleted nor counted, because their age is unknown and they may
    be repairable.
    """
    if keep is None and keep_bytes is None:
        return
    known = readable(folder)
    kept = set(list(known)[-keep:] if keep is not None else known)
    if keep_bytes is not None:
        kept &= _newest_within(known, keep_bytes)
    for prefix in known:
        if prefix not in kept and step_of(prefix) not in spare:
            _delete(prefix)


def _newest_within(known: Mapping[Path, Sidecar], most_bytes: int) -> set[Path]:
    """Returns the newest checkpoints that have at most `most_bytes` bytes together with their deltas."""
    found: set[Path] = set()
    total_bytes = 0
    for prefix, sidecar in reversed(list(known.items())):
        total_bytes += sum(state.bytes for state in sidecar.files.values()) + delta_bytes(prefix)
        if total_bytes > most_bytes:
            break
        found.add(prefix)
    return found


def _finish_writing(partial: Path, folder: Path) -> str | None:
    """Moves a partial checkpoint into place if it was written in full, and removes it otherwise. Returns a note if the
    checkpoint is damaged."""
    if not partial.is_dir() or partial.is_symlink():
        remove(partial)
        return None
    try:
        sidecar = read_sidecar(partial / STEM)
    except CheckpointError:  # the process was killed before all files were written
        remove(partial)
        return None
    if not os.path.lexists(sidecar_path(prefix_of(folder, sidecar.step))):  # otherwise no file has been moved yet
        _move(partial, folder, sidecar)
        return None
    for ending, expected in sidecar.files.items():
        fault = fault_of_file(partial / f"{STEM}.{ending}", expected)
        if fault is not None:
            remove(partial)
            return f"removed {partial}, a damaged checkpoint from a run that was killed while saving: {fault}"
    _move(partial, folder, sidecar)
    return None


def _finish_deleting(forgotten: Path, prefix: Path) -> None:
    begun = not forgotten.is_symlink() and (forgotten / sidecar_path(prefix).name).is_file()
    if begun and not os.path.lexists(sidecar_path(prefix)):
        _delete(prefix)
    else:  # The deletion had not begun, and the checkpoint may have become the best checkpoint in the meantime.
        remove(forgotten)


def _move(partial: Path, folder: Path, sidecar: Sidecar) -> Path:
    prefix = prefix_of(folder, sidecar.step)
    remove_delta(prefix)  # that of an earlier checkpoint of this step
    remove(sidecar_path(prefix))
    for file in files_of(prefix):
        if file.name.removeprefix(f"{prefix.name}.") not in sidecar.files:
            remove(file)
    for file in files_of(partial / STEM):
        replace(file, prefix.with_name(prefix.name + file.name.removeprefix(STEM)))
    replace(sidecar_path(partial / STEM), sidecar_path(prefix))
    flush_file(folder)
    remove(partial)
    return prefix


def _delete(prefix: Path) -> None:
    """Deletes a checkpoint and its delta. First moves the sidecar to a `.forgotten-N` folder, so that `tidy` can finish
    the deletion if this process is killed."""
    forgotten = prefix.with_name(f"{FORGOTTEN}{step_of(prefix)}")
    if not forgotten.is_dir() or forgotten.is_symlink():
        remove(forgotten)
    forgotten.mkdir(exist_ok=True)
    if os.path.lexists(sidecar_path(prefix)):
        replace(sidecar_path(prefix), forgotten / sidecar_path(prefix).name)
    remove_delta(prefix)
    for file in files_of(prefix):
        remove(file)
    remove(forgotten)
