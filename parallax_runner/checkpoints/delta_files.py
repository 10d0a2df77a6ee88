"""Examines deltas on disk: what has changed since a checkpoint. Does not open a session.

A checkpoint has at most one delta, which its file `model.ckpt-N.delta.json` describes. Replacing this file replaces the
delta. The files with values have the step and a number in their names, so a new delta never writes to those of the
delta before. The names `model.ckpt-N.delta…` and `.partial-delta` are reserved for this program.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax_runner.checkpoints.checkpoint_files import (
    STEM,
    FileState,
    fault_of_file,
    file_state,
    names_in,
    sidecar_path,
    signed_text,
    step_in,
)
from parallax_runner.errors import CheckpointError
from parallax_runner.files.plain import read_object, read_text, reason_of, remove
from parallax_runner.process.limits import raise_if_limited

FORMAT = 1
SUFFIX, PARTIAL_DELTA = ".delta", ".partial-delta"
_POINTER = f"{SUFFIX}.json"
# The end of the name of a file with values: step, number of the delta, ending of TensorFlow.
_VALUES = re.compile(re.escape(SUFFIX) + r"-[0-9]+-([0-9]+)\.(?:index|data-[0-9]+-of-[0-9]+)")
_COUNTS = ("step", "examples", "number")
_NAMES = ("rows", "elements")


@dataclass(frozen=True)
class Delta:
    """What a delta's JSON file says.

    The delta has the values of step `step`, at which the next step begins at example `examples`. `base_sha256` is the
    checksum of the sidecar of its checkpoint, and `number` counts the deltas of this checkpoint. `files` has the states
    of its files by the endings of their names. `rows` has the number of changed rows by the names of tables, and
    `elements` the number of changed elements by the names of the variables of maps. `saved_secs` is the time when the
    delta was saved, in seconds since 1970.
    """

    step: int
    examples: int
    base_sha256: str
    number: int = 0
    files: Mapping[str, FileState] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    elements: Mapping[str, int] = field(default_factory=dict)
    saved_secs: float = 0.0
    format: int = FORMAT

    def text(self) -> str:
        """Returns the JSON file's text, with a checksum."""
        return signed_text(dataclasses.asdict(self))

    @property
    def size_bytes(self) -> int:
        """The size of the files with values."""
        return sum(state.bytes for state in self.files.values())


def delta_path(base: Path) -> Path:
    """Returns the path of the JSON file of a checkpoint's delta."""
    return base.with_name(base.name + _POINTER)


def named_base(path: Path) -> Path | None:
    """Returns the checkpoint of the delta that is named by `path` (…/model.ckpt-30.delta), or None if there is no such
    delta."""
    if not path.name.endswith(SUFFIX):
        return None
    base = path.with_name(path.name.removesuffix(SUFFIX))
    return base if delta_path(base).exists() else None


def values_of(base: Path, delta: Delta) -> Path:
    """Returns TensorFlow's prefix of the files with values of a delta."""
    return base.with_name(f"{base.name}{SUFFIX}-{delta.step}-{delta.number}")


def read_delta(base: Path) -> Delta | None:
    """Returns the delta of a checkpoint, or None if there is none. Raises CheckpointError if its JSON file is
    damaged."""
    path = delta_path(base)
    try:
        text, fields = read_object(path)
        unsigned = {key: value for key, value in fields.items() if key != "sha256"}
        if unsigned.get("format") != FORMAT:
            raise ValueError(f"its format is {unsigned.get('format')}, expected {FORMAT}")
        if signed_text(unsigned) != text:
            raise ValueError("it was changed after it was written")
        return _delta(unsigned)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise_if_limited(error)
        raise CheckpointError(f"{path.name} is unusable: {reason_of(error)}") from error


def damage_of_delta(base: Path, delta: Delta) -> str | None:
    """Returns a description of the damage to a delta, or None if it belongs to the checkpoint `base` as it is now, and
    no file has changed since it was written. Reads all files of the delta."""
    if delta.base_sha256 != sha256_of_sidecar(base):
        return f"{delta_path(base).name} belongs to another checkpoint than {base.name}"
    prefix = values_of(base, delta)
    faults = (
        fault_of_file(prefix.with_name(f"{prefix.name}.{ending}"), state) for ending, state in delta.files.items()
    )
    return next(filter(None, faults), None)


def sha256_of_sidecar(base: Path) -> str:
    """Returns a checksum of a checkpoint's sidecar, which identifies the checkpoint. Returns an empty string if the
    sidecar cannot be read."""
    try:
        return hashlib.sha256(read_text(sidecar_path(base)).encode()).hexdigest()
    except (OSError, ValueError):
        return ""


def delta_bytes(base: Path) -> int:
    """Returns the size of a checkpoint's delta, or 0 if it has none that can be read."""
    try:
        delta = read_delta(base)
    except CheckpointError:
        return 0
    return 0 if delta is None else delta.size_bytes


def next_number(base: Path) -> int:
    """Returns a number that no file of an earlier delta of this checkpoint has in its name."""
    numbers = [int(match[1]) for match in _matches(base).values()]
    return 1 + max(numbers, default=0)


def remove_other_values(base: Path, delta: Delta | None) -> None:
    """Removes the files with values of all deltas of a checkpoint but this one."""
    kept = None if delta is None else f"{values_of(base, delta).name}."
    for name in _matches(base):
        if kept is None or not name.startswith(kept):
            remove(base.with_name(name))


def remove_delta(base: Path) -> None:
    """Removes the delta of a checkpoint."""
    remove(delta_path(base))
    remove_other_values(base, None)


def tidy_deltas(folder: Path) -> None:
    """Removes deltas that killed processes left partly written or partly deleted. A delta whose JSON file is damaged
    stays, because it may be repairable. Raises OSError if a file cannot be removed."""
    names = names_in(folder)
    if PARTIAL_DELTA in names:
        remove(folder / PARTIAL_DELTA)
    bases = {name.partition(SUFFIX)[0] for name in names if SUFFIX in name}
    for base in sorted(base for base in bases if step_in(f"{STEM}-", base) is not None):
        _tidy_delta(folder / base)


def _tidy_delta(base: Path) -> None:
    try:
        delta = read_delta(base)
    except CheckpointError:
        return
    remove_other_values(base, delta)


def _matches(base: Path) -> dict[str, re.Match[str]]:
    """Returns the names of the files with values of a checkpoint's deltas."""
    found = {}
    for name in names_in(base.parent):
        match = _VALUES.fullmatch(name.removeprefix(base.name)) if name.startswith(base.name) else None
        if match is not None:
            found[name] = match
    return found


def _delta(fields: Mapping[str, Any]) -> Delta:
    """Creates a delta from JSON fields. Raises ValueError if the fields are not valid."""
    try:
        files = {ending: file_state(ending, state) for ending, state in fields["files"].items()}
        delta = Delta(**{**fields, "files": files})
        counts = [getattr(delta, name) for name in _COUNTS]
        counts += [count for name in _NAMES for count in getattr(delta, name).values()]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a field is missing or has the wrong type ({error})") from error
    if not all(type(count) is int and count >= 0 for count in counts) or type(delta.base_sha256) is not str:
        raise ValueError("a field has the wrong type")
    return delta
