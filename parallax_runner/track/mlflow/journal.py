"""The journal of a run: an append-only file with one JSON object per line. Everything that is sent to MLflow is read
from the journal.

The first run in a directory writes `journal.jsonl`. Each later run in the same directory adds another journal:
`journal.2.jsonl`, `journal.3.jsonl` and so on. The last journal belongs to the directory's current run. The kinds of
entries are `header` (the first line), `start` (a driver has started), `metrics`, `params`, `tags`, `dataset`,
`artifact`, `event` and `end`.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import logging
import math
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax_runner.errors import ConfigError, StorageError
from parallax_runner.files.credentials import masked_uri, masked_values
from parallax_runner.files.regular import open_regular

log = logging.getLogger(__name__)

FORMAT = 1
LOCK = "journal.lock"
# Fields of entries whose values may contain a password.
_FREE_TEXT = ("params", "tags", "summary", "source")
_NAME = re.compile(r"journal(?:\.(\d+))?\.jsonl")
# How long a starting run waits for a process that is sending an old run from the same directory.
LOCK_WAIT_SECS = 5.0


@dataclass(frozen=True)
class Header:
    """The first line of a journal. It describes how to create the journal's run in MLflow.

    `parent` is the directory of the sweep to which the run belongs.
    """

    uri: str
    experiment: str
    run_name: str | None
    tags: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    journal_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    time_ms: int = field(default_factory=lambda: now_ms())
    format: int = FORMAT


_HEADER_TYPES: Mapping[str, Any] = {
    "uri": str,
    "experiment": str,
    "run_name": str | None,
    "tags": dict,
    "parent": str | None,
    "journal_id": str,
    "time_ms": int,
    "format": int,
}
_JOURNAL_ID = re.compile(r"[0-9a-f]{32}")  # it is part of a search in MLflow


def now_ms() -> int:
    """Returns Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def journals(folder: Path) -> list[Path]:
    """Returns the journals of a run directory, oldest first. The last journal belongs to the current run."""
    found = [
        (int(match[1] or 1), path)
        for path in folder.glob("journal*.jsonl")
        if (match := _NAME.fullmatch(path.name)) and not path.is_symlink()
    ]
    return [path for _, path in sorted(found)]


def begun(folder: Path) -> list[Path]:
    """Returns the journals of a directory that have a header. If the disk was full, a journal can lack a header, and
    its run is then unknown."""
    return [path for path in journals(folder) if has_header(path)]


def has_header(path: Path) -> bool:
    """Returns whether a journal begins with a valid header. Raises OSError if the journal cannot be read."""
    try:
        read_header(path)
    except ConfigError:
        return False
    return True


def next_journal(folder: Path) -> Path:
    """Returns the path for the journal of a new run in this directory."""
    taken = journals(folder)
    number = int((_NAME.fullmatch(taken[-1].name) or [0, 1])[1] or 1) + 1 if taken else 1
    return folder / ("journal.jsonl" if number == 1 else f"journal.{number}.jsonl")


def read_header(path: Path) -> Header:
    """Reads the header of a journal. Raises ConfigError if the first entry is not a valid header."""
    first = next((entry for entry, _ in entries(path)), None)
    header = None if first is None or first["kind"] != "header" else _header_in(first)
    if header is not None:
        return header
    raise ConfigError(
        f"{path} is not a journal of this version of parallax_runner: expected a header of format {FORMAT} as the "
        "first line"
    )


def _header_in(entry: Mapping[str, Any]) -> Header | None:
    """Returns the header in an entry, or None if a field is missing or has the wrong type."""
    if not entry.keys() >= _HEADER_TYPES.keys():
        return None
    if any(isinstance(entry[name], bool) or not isinstance(entry[name], kind) for name, kind in _HEADER_TYPES.items()):
        return None
    if entry["format"] != FORMAT or not _JOURNAL_ID.fullmatch(entry["journal_id"]):
        return None
    if not all(isinstance(value, str) for value in entry["tags"].values()):
        return None
    return Header(**{name: entry[name] for name in _HEADER_TYPES})


def entries(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields each entry that starts at or after the byte position `offset`, with the position after the entry.

    Skips lines that a crash left half-written: a last line without a newline, or a line that is not a JSON object.
    """
    with open_regular(path) as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            entry = _parse(line)
            if entry is not None:
                yield entry, offset


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("kind"), str) else None


def as_json(value: float) -> float | str:
    """Converts a number for the journal. JSON has no NaN or infinity, so these become strings that `float` can
    parse."""
    return value if math.isfinite(value) else str(value)


@dataclass(frozen=True)
class Standing:
    """The state of a journal. `start` is the last `start` entry, or None; `is_ended` is true if an `end` entry follows
    it. `last_steps` and `last_values` contain the step and value of each metric's last point."""

    start: Mapping[str, Any] | None
    is_ended: bool
    last_steps: dict[str, int]
    last_values: dict[str, float]


def standing(path: Path) -> Standing:
    """Reads a whole journal and returns its state."""
    start, is_ended = None, False
    last_steps: dict[str, int] = {}
    last_values: dict[str, float] = {}
    for entry, _ in entries(path):
        if entry["kind"] == "start":
            start, is_ended = entry, False
        elif entry["kind"] == "end":
            is_ended = True
        elif entry["kind"] == "metrics":
            last_steps.update(dict.fromkeys(entry["metrics"], entry["step"]))
            last_values.update({key: float(value) for key, value in entry["metrics"].items()})
    return Standing(start, is_ended, last_steps, last_values)


@contextmanager
def writing(folder: Path, *, wait_secs: float) -> Iterator[None]:
    """Holds the lock for appending to the journals of a directory. The kernel releases the lock when the process dies.

    Raises BlockingIOError if another process holds the lock for longer than `wait_secs`.
    """
    # The flags guard against a symbolic link, which would let the folder's owner create a file elsewhere, and against a
    # FIFO, which would block forever.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(folder / LOCK, flags, 0o644), "a", encoding="utf-8") as lock:
        deadline = time.monotonic() + wait_secs
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield


class Journal:
    """Appends to one journal. The caller must hold the lock `writing`. Appended entries survive the death of this
    process.

    If the disk is full, entries are lost, but the run does not stop; the log reports the loss once. Only the `header`
    is required: raises StorageError if the header cannot be written.
    """

    def __init__(self, path: Path, header: Header | None = None) -> None:
        self.path = path
        # The file is unbuffered, because appended entries must survive the death of this process.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        self._warned, self._lock = False, threading.Lock()
        if header is not None:
            self._begin(header)

    def _begin(self, header: Header) -> None:
        self.append("header", **dataclasses.asdict(header))
        if self._warned:
            self.close()
            self.path.unlink()
            raise StorageError(f"{self.path}: the journal cannot be created, because the disk is full or not writable")

    def append(self, kind: str, **fields: Any) -> None:
        """Appends one entry, with passwords masked."""
        shown = {key: masked_values(value) if key in _FREE_TEXT else value for key, value in fields.items()}
        if "uri" in shown:
            shown["uri"] = masked_uri(shown["uri"])
        line = json.dumps({"kind": kind, **shown}, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._write(line)

    def _write(self, line: bytes) -> None:
        if self._torn:
            # End a half-written line first, because it would corrupt the new line.
            line = b"\n" + line
        try:
            written = os.write(self._file, line)
        except OSError as error:
            self._lose(str(error))
            return
        self._torn = 0 < written < len(line)
        if self._torn:
            self._lose("no space left")

    def append_start(self, **fields: Any) -> None:
        """Appends a `start` entry, which records that this process begins or continues the run."""
        self.append("start", time_ms=now_ms(), host=socket.gethostname(), pid=os.getpid(), **fields)

    def append_end(self, status: str) -> None:
        """Appends an `end` entry, which records how the run ended."""
        self.append("end", status=status, time_ms=now_ms())

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def _lose(self, reason: str) -> None:
        if not self._warned:
            log.warning("%s cannot be written, so MLflow will miss entries: %s (logged once)", self.path, reason)
        self._warned = True
