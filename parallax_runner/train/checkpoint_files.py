"""Checkpoints on disk: names, sidecars, publishing and which to keep. Opens no session."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax_runner.errors import CheckpointError

STEM = "model.ckpt"
FORMAT = 2
PARTIAL, FORGOTTEN = ".partial-", ".forgotten-"


@dataclass(frozen=True)
class FileState:
    """What a file of a checkpoint was when it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Sidecar:
    """What a checkpoint's JSON file says beside the variables.

    `step` steps are done and `examples` examples of the data's stream consumed, by all ranks together. `files` are
    those of TensorFlow, by the end of their names («index»); `saved_secs` is the time of day, since 1970. With another
    `numbering` of the data's rows of tables are other words; empty where nobody knows.
    """

    step: int
    examples: int
    seed: int
    fingerprint: str
    mlflow_run_id: str | None
    files: Mapping[str, FileState] = field(default_factory=dict)
    saved_secs: float = 0.0
    numbering: str = ""
    format: int = FORMAT

    def text(self) -> str:
        """As JSON, with a checksum of its own."""
        fields = dataclasses.asdict(self)
        return json.dumps(fields | {"sha256": _checksum(fields)}, indent=1) + "\n"


def prefix_of(folder: Path, step: int) -> Path:
    """What TensorFlow calls the checkpoint of a step: the common start of its files' names."""
    return folder / f"{STEM}-{step}"


def step_of(prefix: Path) -> int:
    """The step in a prefix's name."""
    return int(prefix.name.removeprefix(f"{STEM}-"))


def sidecar_path(prefix: Path) -> Path:
    """Where a checkpoint's sidecar is."""
    return prefix.with_name(prefix.name + ".json")


def files_of(prefix: Path) -> list[Path]:
    """The files that TensorFlow wrote for a checkpoint."""
    return [file for ending in ("data-*", "index") for file in sorted(prefix.parent.glob(f"{prefix.name}.{ending}"))]


def read_sidecar(prefix: Path) -> Sidecar:
    """Raises CheckpointError where it is missing, damaged, or not ours."""
    path = sidecar_path(prefix)
    try:
        text = path.read_text(encoding="utf-8")
        fields: dict[str, Any] = json.loads(text)
        if fields["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {prefix}: {path.name} has format {fields['format']}, and this parallax_runner reads "
                f"{FORMAT}; use the one that wrote it"
            )
        fields.pop("sha256")
        files = {ending: FileState(**state) for ending, state in fields.pop("files").items()}
        sidecar = Sidecar(**fields, files=files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {prefix}: its sidecar {path.name} is unusable: {error!r}") from error
    # Compared as text: that a changed character still is JSON does not make it what was written.
    if sidecar.text() != text:
        raise CheckpointError(f"checkpoint {prefix}: its sidecar {path.name} is not what was written")
    return sidecar


def damage(prefix: Path) -> str | None:
    """What is wrong with a checkpoint, None where all its files are what was written; reads all of them."""
    try:
        sidecar = read_sidecar(prefix)
        for ending, expected in sidecar.files.items():
            file = prefix.with_name(f"{prefix.name}.{ending}")
            if not file.exists():
                return f"{file.name} is missing"
            if file.stat().st_size != expected.bytes:
                return f"{file.name} has {file.stat().st_size} bytes and was written with {expected.bytes}"
            if _state_of(file) != expected:
                return f"the content of {file.name} does not match its checksum"
    except CheckpointError as error:
        return str(error).removeprefix(f"checkpoint {prefix}: ")
    except OSError as error:
        return f"it cannot be read: {error}"
    return None


def prepare(folder: Path) -> None:
    """Makes the folder and tidies it; raises CheckpointError where nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        tidy(folder)
    except OSError as error:
        raise CheckpointError(
            f"ckpt.dir={folder}: checkpoints cannot be written there: {error.strerror or error}; give another folder, "
            "or go without (ckpt=off)"
        ) from error


def begin(folder: Path, step: int) -> Path:
    """Makes an empty folder beside the checkpoints for one that is being written; returns the prefix to write to."""
    partial = folder / f"{PARTIAL}{step}"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial / STEM


def flush(written: Path) -> None:
    """Flushes to disk what TensorFlow wrote."""
    for file in files_of(written):
        _sync(file)


def publish(written: Path, folder: Path, sidecar: Sidecar) -> Path:
    """Moves what was written to `written` (see `begin` and `flush`) into place, its sidecar last: without one there is
    no checkpoint. `files` and `saved_secs` of the sidecar are filled in. Returns the new prefix.

    All is flushed to disk before the first move. The sidecar in the partial folder says so: what is there can be moved
    (`tidy`), even where a checkpoint of the same step, now half replaced, stood in the way.
    """
    files = {file.name.removeprefix(f"{written.name}."): _state_of(file) for file in files_of(written)}
    complete = dataclasses.replace(sidecar, files=files, saved_secs=time.time())
    sidecar_path(written).write_text(complete.text(), encoding="utf-8")
    for path in (sidecar_path(written), written.parent, folder):
        _sync(path)
    return _move(written.parent, folder, complete)


def tidy(folder: Path) -> None:
    """Removes what killed processes left of checkpoints that they were writing or deleting.

    One that had been written in full, and was being moved into place, is moved. Nobody else may be saving here.
    """
    for partial in sorted(folder.glob(f"{PARTIAL}*")):
        try:
            sidecar = read_sidecar(partial / STEM)
        except CheckpointError:
            shutil.rmtree(partial)
        else:
            _move(partial, folder, sidecar)
    for forgotten in sorted(folder.glob(f"{FORGOTTEN}*")):
        prefix = prefix_of(folder, int(forgotten.name.removeprefix(FORGOTTEN)))
        if not sidecar_path(prefix).exists():
            _delete(prefix)
        else:  # Not begun: it may have become the best there is.
            shutil.rmtree(forgotten)


def list_checkpoints(folder: Path) -> list[Path]:
    """Prefixes of a folder's checkpoints, damaged ones too, in the order in which they were written.

    Not by step: a fresh run in a used folder begins again at low ones, and must not lose its own to old ones.
    """
    found = []
    for file in folder.glob(f"{STEM}-*.json"):
        match = re.fullmatch(rf"{re.escape(STEM)}-(\d+)\.json", file.name)
        if match:
            found.append((_saved_secs(file.with_suffix("")), int(match[1]), file.with_suffix("")))
    return [prefix for *_, prefix in sorted(found)]


def forget_old(folder: Path, keep: int | None, spare: Collection[int] = ()) -> None:
    """Deletes all checkpoints but the `keep` newest, None: all, and those of the steps in `spare`."""
    if keep is None:
        return
    for prefix in list_checkpoints(folder)[:-keep]:
        if step_of(prefix) not in spare:
            _delete(prefix)


def _sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(partial: Path, folder: Path, sidecar: Sidecar) -> Path:
    prefix = prefix_of(folder, sidecar.step)
    sidecar_path(prefix).unlink(missing_ok=True)
    for file in files_of(prefix):
        if file.name.removeprefix(f"{prefix.name}.") not in sidecar.files:
            file.unlink()
    for file in files_of(partial / STEM):
        os.replace(file, prefix.with_name(prefix.name + file.name.removeprefix(STEM)))
    os.replace(sidecar_path(partial / STEM), sidecar_path(prefix))
    _sync(folder)
    shutil.rmtree(partial)
    return prefix


def _delete(prefix: Path) -> None:
    """The sidecar goes first, to a folder by which `tidy` knows that the rest is to follow."""
    forgotten = prefix.with_name(f"{FORGOTTEN}{step_of(prefix)}")
    forgotten.mkdir(exist_ok=True)
    if sidecar_path(prefix).exists():
        os.replace(sidecar_path(prefix), forgotten / sidecar_path(prefix).name)
    for file in files_of(prefix):
        file.unlink()
    shutil.rmtree(forgotten)


def _saved_secs(prefix: Path) -> float:
    """When a checkpoint was written; of one whose sidecar is damaged, the sidecar's own time."""
    try:
        return read_sidecar(prefix).saved_secs
    except CheckpointError:
        try:
            return sidecar_path(prefix).stat().st_mtime
        except FileNotFoundError:  # deleted meanwhile, being old, by the run that is training there
            return 0.0


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _state_of(path: Path) -> FileState:
    with path.open("rb") as file:
        return FileState(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())
