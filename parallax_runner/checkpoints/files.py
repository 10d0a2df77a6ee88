"""Checkpoints on disk: their names, their sidecars, what is damaged, and their order. Opens no session."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax_runner.errors import CheckpointError
from parallax_runner.files.plain import read_object, reason_of
from parallax_runner.files.regular import open_regular

STEM = "model.ckpt"
FORMAT = 3
READABLE_FORMATS = (2, 3)  # 2: without `write_number`
PARTIAL, FORGOTTEN = ".partial-", ".forgotten-"
_NUMBER = "(0|[1-9][0-9]*)"
_ENDING = re.compile(r"index|data-[0-9]+-of-[0-9]+")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "step": (int,),
    "examples": (int,),
    "seed": (int,),
    "fingerprint": (str,),
    "mlflow_run_id": (str, type(None)),
    "write_number": (int,),
    "saved_secs": (int, float),
    "numbering": (str,),
    "format": (int,),
}


@dataclass(frozen=True)
class FileState:
    """What a file of a checkpoint was when it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Sidecar:
    """What a checkpoint's JSON file says beside the variables.

    `step` steps are done and `examples` examples of the data's stream consumed, by all ranks together. `files` are
    those of TensorFlow, by the end of their names («index»), whoever has written each. `write_number` counts the
    checkpoints that were ever published in the folder, from 1 on; it is 0 in format 2. `saved_secs` is the time of day,
    since 1970, for people: clocks are set back. With another `numbering` of the data's rows of tables are other words;
    empty where nobody knows.
    """

    step: int
    examples: int
    seed: int
    fingerprint: str
    mlflow_run_id: str | None
    files: Mapping[str, FileState] = field(default_factory=dict)
    write_number: int = 0
    saved_secs: float = 0.0
    numbering: str = ""
    format: int = FORMAT

    def text(self) -> str:
        """As JSON, with a checksum of its own."""
        return _text(dataclasses.asdict(self))


def prefix_of(folder: Path, step: int) -> Path:
    """What TensorFlow calls the checkpoint of a step: the common start of its files' names."""
    return folder / f"{STEM}-{step}"


def step_of(prefix: Path) -> int:
    """The step in a prefix's name."""
    return int(prefix.name.removeprefix(f"{STEM}-"))


def step_in(start: str, name: str, end: str = "") -> int | None:
    """The step in a name that is `start`, a step and `end`; None in another."""
    match = re.fullmatch(f"{re.escape(start)}{_NUMBER}{re.escape(end)}", name)
    return None if match is None else int(match[1])


def sidecar_path(prefix: Path) -> Path:
    """Where a checkpoint's sidecar is."""
    return prefix.with_name(prefix.name + ".json")


def files_of(prefix: Path) -> list[Path]:
    """What stands where TensorFlow writes a checkpoint's files: those with values, then the index."""
    start = f"{prefix.name}."
    endings = [name.removeprefix(start) for name in names_in(prefix.parent) if name.startswith(start)]
    return [prefix.with_name(start + ending) for ending in sorted(endings) if _ENDING.fullmatch(ending)]


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted; none where there is no folder. Raises OSError where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_sidecar(prefix: Path) -> Sidecar:
    """Raises CheckpointError where it is missing, damaged, or not ours."""
    path = sidecar_path(prefix)
    try:
        text, fields = read_object(path)
        if fields.get("format") not in READABLE_FORMATS:
            raise CheckpointError(
                f"checkpoint {prefix}: {path.name} has format {fields.get('format')}, and this parallax_runner reads "
                f"{' and '.join(map(str, READABLE_FORMATS))}; use the one that wrote it"
            )
        unsigned = {key: value for key, value in fields.items() if key != "sha256"}
        # Compared as text: that a changed character still is JSON does not make it what was written.
        if _text(unsigned) != text:
            raise CheckpointError(f"checkpoint {prefix}: its sidecar {path.name} is not what was written")
        return _sidecar(unsigned)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"checkpoint {prefix}: its sidecar {path.name} is missing, which TensorFlow's own Saver does not write"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {prefix}: its sidecar {path.name} is unusable: {reason_of(error)}"
        ) from error


def damage(prefix: Path) -> str | None:
    """What is wrong with a checkpoint, None where all its files are what was written; reads all of them."""
    try:
        sidecar = read_sidecar(prefix)
        if step_in(f"{STEM}-", prefix.name) not in (None, sidecar.step):
            return f"its sidecar {sidecar_path(prefix).name} is that of step {sidecar.step}"
        for ending, expected in sidecar.files.items():
            fault = fault_of_file(prefix.with_name(f"{prefix.name}.{ending}"), expected)
            if fault is not None:
                return fault
    except CheckpointError as error:
        return str(error).removeprefix(f"checkpoint {prefix}: ")
    return None


def fault_of_file(file: Path, expected: FileState) -> str | None:
    """How a file differs from what was written, None where it does not."""
    try:
        found = state_of(file, at_most_bytes=expected.bytes)
    except FileNotFoundError:
        return f"{file.name} is missing"
    except OSError as error:
        return f"{file.name} cannot be read: {reason_of(error)}"
    if found.bytes != expected.bytes:
        return f"{file.name} has {found.bytes} bytes and was written with {expected.bytes}"
    return None if found == expected else f"the content of {file.name} does not match its checksum"


def state_of(path: Path, *, at_most_bytes: int | None = None) -> FileState:
    """What a file is now; a larger one than `at_most_bytes` is not read. Raises OSError where it cannot be read."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if at_most_bytes is not None and size_bytes > at_most_bytes:
            return FileState(bytes=size_bytes, sha256="")
        return FileState(bytes=size_bytes, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def list_checkpoints(folder: Path) -> list[Path]:
    """Prefixes of a folder's checkpoints, damaged ones too, in the order in which they were written; last are those
    whose sidecar cannot be read, so that nobody knows when they were written.

    Raises OSError where the folder cannot be read.
    """
    known, unknown = _read_all(folder)
    return [*known, *unknown]


def readable(folder: Path) -> dict[Path, Sidecar]:
    """The checkpoints whose sidecar can be read, in the order in which they were written."""
    return _read_all(folder)[0]


def newest_write_number(folder: Path) -> int:
    """That of the checkpoint of a folder that was written last, 0 where there is none that has one."""
    return max((sidecar.write_number for sidecar in readable(folder).values()), default=0)


def without_sidecar(folder: Path) -> list[Path]:
    """Prefixes of checkpoints that have lost their sidecar. Not those that TensorFlow's own Saver wrote, which leaves a
    «.meta» beside them, and not those that are being written or deleted."""
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
    """The order is not that of steps: a fresh run in a used folder begins again at low ones, and must not lose its own
    to old ones. Nor that of time, except among checkpoints of format 2, which say nothing else."""
    known, unknown = {}, []
    steps = {step for name in names_in(folder) if (step := step_in(f"{STEM}-", name, ".json")) is not None}
    for prefix in (prefix_of(folder, step) for step in sorted(steps)):
        try:
            known[prefix] = read_sidecar(prefix)
        except CheckpointError:
            # One that is gone was deleted meanwhile, being old, by the run that is training there.
            if os.path.lexists(sidecar_path(prefix)):
                unknown.append(prefix)
    order = sorted(known, key=lambda prefix: (known[prefix].write_number, known[prefix].saved_secs, step_of(prefix)))
    return {prefix: known[prefix] for prefix in order}, unknown


def _sidecar(fields: Mapping[str, Any]) -> Sidecar:
    """Raises ValueError where the fields are not those of a sidecar."""
    # A later version may add fields that this one can do without; it changes the format where it cannot.
    known = {entry.name for entry in dataclasses.fields(Sidecar)} & set(fields) - {"files"}
    for name in known:
        if type(fields[name]) not in _TYPES[name]:  # not isinstance: true is an int
            raise ValueError(f"its {name} is {fields[name]!r}")
    try:
        files = {ending: _file_state(ending, state) for ending, state in fields["files"].items()}
        return Sidecar(**{name: fields[name] for name in known}, files=files)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its fields are not those of a sidecar ({error})") from error


def _file_state(ending: str, fields: Mapping[str, Any]) -> FileState:
    state = FileState(bytes=fields["bytes"], sha256=fields["sha256"])
    if not _ENDING.fullmatch(ending) or type(state.bytes) is not int or type(state.sha256) is not str:
        raise ValueError(f"its file {ending!r} is {dict(fields)}")
    return state


def _text(fields: Mapping[str, Any]) -> str:
    """Raises ValueError where the fields cannot be written as JSON."""
    try:
        checksum = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
        return json.dumps({**fields, "sha256": checksum}, indent=1) + "\n"
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
