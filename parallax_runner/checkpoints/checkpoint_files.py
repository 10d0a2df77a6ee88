"""Examines checkpoints on disk: their names, sidecars and order, and whether they are damaged. Does not open a
session."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax_runner.config.trackers import RUN_ID_KEY
from parallax_runner.errors import CheckpointError
from parallax_runner.files.plain import read_object, reason_of
from parallax_runner.files.regular import open_regular
from parallax_runner.process.limits import raise_if_limited

STEM = "model.ckpt"
FORMAT = 3
PARTIAL, FORGOTTEN = ".partial-", ".forgotten-"
_NUMBER = "(0|[1-9][0-9]*)"
_ENDING = re.compile(r"index|data-[0-9]+-of-[0-9]+")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "step": (int,),
    "examples": (int,),
    "seed": (int,),
    "fingerprint": (str,),
    RUN_ID_KEY: (str, type(None)),
    "write_number": (int,),
    "saved_secs": (int, float),
    "numbering": (str,),
    "data": (dict,),
    "epoch": (dict, type(None)),
    "block_rows": (dict,),
    "format": (int,),
}


# The checksums of the files of a checkpoint are computed in so many threads. More threads wait for memory or the disk.
CHECKSUM_THREADS = 4
# TensorFlow counts steps and examples as 64-bit integers.
_MOST = 2**63 - 1
_COUNTS = ("step", "examples", "write_number")
# Fields that earlier versions of this format do not have.
_SINCE_FORMAT = frozenset(["block_rows"])


@dataclass(frozen=True)
class FileState:
    """The size and checksum of a checkpoint file when it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Sidecar:
    """The JSON file that belongs to a checkpoint.

    At the time of saving, all ranks together had completed `step` steps, and the next step begins at example `examples`
    of the data stream. `data` identifies that data (data/identity.py), and is empty if it is unknown. `files` maps the
    suffix of each TensorFlow file's name (such as «index») to the file's state. `write_number` is the checkpoint's
    number, counted from 1 in the order in which checkpoints were published in the folder. `saved_secs` is the time when
    the checkpoint was saved, in seconds since 1970. People read it; it orders nothing, since a clock can be set back.
    `numbering` identifies the numbering of words in the data, and thus the word that each row of a table represents. It
    is empty if the numbering is unknown. `epoch` is the state of an epoch of `fit` (driver/epoch_state.py). It is None
    for other runs. `block_rows` has the number of rows in a block, by the names of the variables that the checkpoint
    contains in blocks of consecutive rows.
    """

    step: int
    examples: int
    seed: int
    fingerprint: str
    tracker_run_id: str | None = field(metadata={"key": RUN_ID_KEY})
    files: Mapping[str, FileState] = field(default_factory=dict)
    write_number: int = 0
    saved_secs: float = 0.0
    numbering: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    epoch: Mapping[str, Any] | None = None
    block_rows: Mapping[str, int] = field(default_factory=dict)
    format: int = FORMAT

    def text(self) -> str:
        """Returns the sidecar as JSON, with a checksum."""
        return signed_text({_KEYS[name]: value for name, value in dataclasses.asdict(self).items()})


_KEYS = {entry.name: entry.metadata.get("key", entry.name) for entry in dataclasses.fields(Sidecar)}


def prefix_of(folder: Path, step: int) -> Path:
    """Returns TensorFlow's prefix for the checkpoint of a step: the common start of the checkpoint's file paths."""
    return folder / f"{STEM}-{step}"


def step_of(prefix: Path) -> int:
    """Returns the step in a prefix's name."""
    return int(prefix.name.removeprefix(f"{STEM}-"))


def step_in(start: str, name: str, end: str = "") -> int | None:
    """Returns the step in a name that consists of `start`, the step and `end`. Returns None for any other name."""
    match = re.fullmatch(f"{re.escape(start)}{_NUMBER}{re.escape(end)}", name)
    return None if match is None else int(match[1])


def sidecar_path(prefix: Path) -> Path:
    """Returns the path of a checkpoint's sidecar."""
    return prefix.with_name(prefix.name + ".json")


def files_of(prefix: Path) -> list[Path]:
    """Returns the paths of a checkpoint's existing files: first the files with values, then the index."""
    start = f"{prefix.name}."
    endings = [name.removeprefix(start) for name in names_in(prefix.parent) if name.startswith(start)]
    return [prefix.with_name(start + ending) for ending in sorted(endings) if _ENDING.fullmatch(ending)]


def names_in(folder: Path) -> list[str]:
    """Returns the sorted names of a folder's entries, or an empty list if the folder does not exist. Raises OSError if
    the folder cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_sidecar(prefix: Path) -> Sidecar:
    """Reads a checkpoint's sidecar. Raises CheckpointError if the sidecar is missing, damaged, or of an unknown
    format."""
    path = sidecar_path(prefix)
    try:
        text, fields = read_object(path)
        if fields.get("format") != FORMAT:
            raise CheckpointError(
                f"checkpoint {prefix}: its sidecar {path.name} has format {fields.get('format')}, expected {FORMAT}. "
                "Use the version of parallax_runner that wrote the checkpoint"
            )
        unsigned = {key: value for key, value in fields.items() if key != "sha256"}
        # Compares the text, since JSON can still be valid after a character has changed.
        if signed_text(unsigned) != text:
            raise CheckpointError(
                f"checkpoint {prefix}: its sidecar {path.name} was changed after the checkpoint was written"
            )
        return _sidecar(unsigned)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {prefix}: its sidecar {path.name} is missing (TensorFlow's own Saver writes no sidecar)"
        ) from error
    except (OSError, ValueError) as error:
        raise_if_limited(error)
        raise CheckpointError(
            f"checkpoint {prefix}: its sidecar {path.name} is unusable: {reason_of(error)}"
        ) from error


def block_rows_of(prefix: Path) -> Mapping[str, int]:
    """Returns the `block_rows` of a checkpoint's sidecar, or an empty dict if there is no sidecar. Raises
    CheckpointError if the sidecar is damaged."""
    return read_sidecar(prefix).block_rows if sidecar_path(prefix).exists() else {}


def damage(prefix: Path) -> str | None:
    """Returns a description of the damage to a checkpoint, or None if no file has changed since it was written. Reads
    all files."""
    try:
        sidecar = read_sidecar(prefix)
        if step_in(f"{STEM}-", prefix.name) not in (None, sidecar.step):
            return f"its sidecar {sidecar_path(prefix).name} belongs to step {sidecar.step}"
        return _first_fault(prefix, sidecar.files)
    except CheckpointError as error:
        return str(error).removeprefix(f"checkpoint {prefix}: ")


def _first_fault(prefix: Path, files: Mapping[str, FileState]) -> str | None:
    """Returns how the first of the files that differ from their states differs. Several threads compute the
    checksums."""

    def fault_of(item: tuple[str, FileState]) -> str | None:
        return fault_of_file(prefix.with_name(f"{prefix.name}.{item[0]}"), item[1])

    with ThreadPoolExecutor(CHECKSUM_THREADS, thread_name_prefix="checksum") as pool:
        return next(filter(None, pool.map(fault_of, files.items())), None)


def fault_of_file(file: Path, expected: FileState) -> str | None:
    """Returns a description of how a file differs from the state `expected`, or None if it does not differ."""
    try:
        found = state_of(file, at_most_bytes=expected.bytes)
    except FileNotFoundError:
        return f"{file.name} is missing"
    except OSError as error:
        raise_if_limited(error)
        return f"{file.name} cannot be read: {reason_of(error)}"
    if found.bytes != expected.bytes:
        return f"{file.name} has {found.bytes} bytes instead of {expected.bytes}"
    return None if found == expected else f"the content of {file.name} does not match its checksum"


def state_of(path: Path, *, at_most_bytes: int | None = None) -> FileState:
    """Returns a file's current state. Does not read a file larger than `at_most_bytes`. Raises OSError if the file
    cannot be read."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if at_most_bytes is not None and size_bytes > at_most_bytes:
            return FileState(bytes=size_bytes, sha256="")
        return FileState(bytes=size_bytes, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the prefixes of a folder's checkpoints, including damaged ones, in the order in which they were written.

    Checkpoints whose sidecar cannot be read come last, since their order is unknown. Raises OSError if the folder
    cannot be read.
    """
    known, unknown = _read_all(folder)
    return [*known, *unknown]


def readable(folder: Path) -> dict[Path, Sidecar]:
    """Returns the checkpoints whose sidecar can be read, in the order in which they were written."""
    return _read_all(folder)[0]


def newest_write_number(folder: Path) -> int:
    """Returns the write number of a folder's newest checkpoint, or 0 if no checkpoint has a write number."""
    return max((sidecar.write_number for sidecar in readable(folder).values()), default=0)


def without_sidecar(folder: Path) -> list[Path]:
    """Returns the prefixes of checkpoints whose sidecar is missing.

    Omits checkpoints of TensorFlow's own Saver, which writes a «.meta» file, and checkpoints that are being written or
    deleted.
    """
    names = set(names_in(folder))
    steps = set()
    for name in names:
        ending = name.removeprefix(f"{STEM}-").partition(".")[2]
        if _ENDING.fullmatch(ending) and (step := step_in(f"{STEM}-", name, f".{ending}")) is not None:
            steps.add(step)
    return [
        prefix_of(folder, step)
        for step in sorted(steps)
        if not names & {f"{STEM}-{step}.json", f"{STEM}-{step}.meta", f"{PARTIAL}{step}", f"{FORGOTTEN}{step}"}
    ]


def _read_all(folder: Path) -> tuple[dict[Path, Sidecar], list[Path]]:
    """Returns readable checkpoints in the order in which they were written, and checkpoints whose sidecar is
    unreadable.

    Checkpoints are not ordered by step: a fresh run in a used folder starts again at low steps, and must keep its own
    checkpoints instead of older checkpoints with higher steps.
    """
    known, unknown = {}, []
    steps = {step for name in names_in(folder) if (step := step_in(f"{STEM}-", name, ".json")) is not None}
    for prefix in (prefix_of(folder, step) for step in sorted(steps)):
        try:
            known[prefix] = read_sidecar(prefix)
        except CheckpointError:
            # If the sidecar no longer exists, a run that is training in this folder has deleted this old checkpoint in
            # the meantime.
            if os.path.lexists(sidecar_path(prefix)):
                unknown.append(prefix)
    order = sorted(known, key=lambda prefix: (known[prefix].write_number, step_of(prefix)))
    return {prefix: known[prefix] for prefix in order}, unknown


def _sidecar(fields: Mapping[str, Any]) -> Sidecar:
    """Creates a sidecar from JSON fields. Raises ValueError if the fields are not valid for a sidecar."""
    # A later version can add fields that readers may ignore. Any other new field changes the format.
    try:
        absent = _SINCE_FORMAT - fields.keys()
        known = {name: fields[key] for name, key in _KEYS.items() if name != "files" and key not in absent}
        for name, value in known.items():
            _check_field(name, value)
        files = {ending: file_state(ending, state) for ending, state in fields["files"].items()}
        return Sidecar(**known, files=files)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a field is missing or has the wrong type ({error})") from error


def _check_field(name: str, value: Any) -> None:
    """Raises ValueError if a field of a sidecar has the wrong type or is out of range."""
    if type(value) not in _TYPES[_KEYS[name]]:  # isinstance would accept true as an int
        raise ValueError(f"its field «{_KEYS[name]}» has the wrong type: {value!r}")
    if name in _COUNTS and not 0 <= value <= _MOST:
        raise ValueError(f"its field «{name}» is not a count: {str(value)[:40]}")
    if name == "block_rows" and not all(type(rows) is int and 0 < rows <= _MOST for rows in value.values()):
        raise ValueError(f"its field «block_rows» has an entry that is not a number of rows: {value!r}")
    if name == "saved_secs" and not abs(value) <= _MOST:  # also if it is NaN
        raise ValueError(f"its field «{name}» is not a time: {value!r}")


def file_state(ending: str, fields: Mapping[str, Any]) -> FileState:
    """Creates a file's state from JSON fields. Raises KeyError, TypeError or ValueError if they are not valid."""
    state = FileState(bytes=fields["bytes"], sha256=fields["sha256"])
    is_valid = type(state.bytes) is int and 0 <= state.bytes <= _MOST and type(state.sha256) is str
    if not _ENDING.fullmatch(ending) or not is_valid:
        raise ValueError(f"its entry for the file «{ending}» is invalid: {dict(fields)}")
    return state


def signed_text(fields: Mapping[str, Any]) -> str:
    """Returns the fields as JSON, with a checksum. Raises ValueError if they cannot be written as JSON."""
    try:
        checksum = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
        return json.dumps({**fields, "sha256": checksum}, indent=1) + "\n"
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
