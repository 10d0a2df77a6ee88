"""Sends one journal to its MLflow run, batch by batch, without losing or duplicating entries.

A file next to the journal contains the position up to which the journal has been sent. The file is written after the
store has acknowledged a batch. If the process crashes before the file is written, the same points, parameters and tags
are sent again, and the store keeps only one copy.
"""

from __future__ import annotations

import fcntl
import io
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parallax_runner.files.credentials import masked_uri
from parallax_runner.files.regular import open_regular, read_regular
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow import outbox, run_id
from parallax_runner.track.mlflow.destination import is_foreign
from parallax_runner.track.mlflow.journal import Header
from parallax_runner.track.mlflow.store import (
    CopyFailed,
    EntryRefused,
    Opened,
    OpenRun,
    ParentUnknown,
    Point,
    StoreRun,
)
from parallax_runner.track.mlflow.within import check_contents, within, within_outbox
from parallax_runner.track.run_record import SUMMARY

log = logging.getLogger(__name__)

POINTS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
TAGS_PER_BATCH = 100
COPY_PAUSE_SECS = 0.5
EVENTS = ("checkpoint", "model", "final_file")
_TOGETHER = ("metrics", "params", "tags")


class Busy(Exception):
    """Raised if another process is sending the journal."""


@dataclass
class Batch:
    """Entries that are sent in one call, and the byte position after the last entry."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    end: int = 0

    def count(self, kind: str) -> int:
        """Returns the number of points, parameters or tags in the batch."""
        return sum(len(entry[kind]) for entry in self.entries if entry["kind"] == kind)


def sent_path(path: Path) -> Path:
    """Returns the path of the file that contains the position up to which a journal has been sent."""
    return path.with_suffix(".sent")


class Delivery:
    """Sends one journal. Use as a context manager, which raises Busy if another process is sending the journal.

    `header` contains the store's URI with the password; the journal contains the URI without the password.
    """

    def __init__(self, path: Path, open_run: OpenRun, header: Header) -> None:
        self.path, self.header = path, header
        self._run_dir, self._open_run = path.parent, open_run
        self._offset, self._opened = _read_position(path, self.header)
        self._run: StoreRun | None = None
        self._lock: io.BufferedReader | None = None
        self._warned = False

    def __enter__(self) -> Delivery:
        self._lock = open_regular(self.path)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise Busy(f"{self.path} is being sent by another process") from None
        # Another process may have sent more entries before this process got the lock.
        self._offset, self._opened = _read_position(self.path, self.header)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def opened(self) -> Opened | None:
        """The store's run, or None while the run is unknown."""
        return self._opened

    def send_next(self) -> bool:
        """Sends one batch. Returns False if there was nothing to send. Raises OutOfReach or Refused."""
        batch = next_batch(self.path, self._offset)
        if not batch.entries:
            return False
        run = self._ready()
        try:
            self._send(run, batch.entries)
        except EntryRefused as error:
            self._send_singly(run, batch.entries, error)
        self._offset = batch.end
        self._keep_position()
        return True

    def send_all(self) -> int:
        """Sends all unsent entries in the journal and returns their number. Raises OutOfReach or Refused.

        If a file cannot be copied, retries until the StoreRun gives up.
        """
        count = unsent(self.path, self.header)
        while True:
            try:
                if not self.send_next():
                    return count
            except CopyFailed as error:
                log.info("%s: cannot copy a file, trying again: %s", self.path, error)
                time.sleep(COPY_PAUSE_SECS)

    def _ready(self) -> StoreRun:
        if self._run is None:
            self._run = self._open_run(self.header, self._opened, self._parent_run_id())
            self._opened = self._run.opened
            self._keep_position()
            if not self._has_successor():
                run_id.write_run(
                    self.path.parent,
                    run_id=self._opened.run_id,
                    uri=self.header.uri,
                    experiment_id=self._opened.experiment_id,
                )
        return self._run

    def _paths_of(self, entry: Mapping[str, Any]) -> dict[str, Path]:
        if entry["kind"] == "artifact":
            return {"path": within(self._run_dir, entry["path"])}
        is_checkpoint = entry["event"] == "checkpoint"
        inside = within_outbox if is_checkpoint else within
        return {key: inside(self._run_dir, name) for key, name in entry["fields"].items()}

    def _has_successor(self) -> bool:
        """Returns whether a later run has begun in the directory."""
        return self.path != journals.begun(self.path.parent)[-1]

    def _parent_run_id(self) -> str | None:
        if self.header.parent is None or not journals.begun(Path(self.header.parent)):
            return None
        known = run_id.read_run_id(Path(self.header.parent))
        if known is None:
            raise ParentUnknown(f"the run of the sweep {self.header.parent} is not in MLflow yet")
        return known

    def _keep_position(self) -> None:
        assert self._opened is not None
        said = {"journal_id": self.header.journal_id, "uri": masked_uri(self.header.uri)}
        fields = {**said, "offset": self._offset, **asdict(self._opened)}
        run_id.replace_json(sent_path(self.path), fields)

    def _send_singly(self, run: StoreRun, entries: list[dict[str, Any]], error: EntryRefused) -> None:
        """Sends entries one at a time, so that a refused entry does not prevent the other entries from being stored."""
        if len(entries) == 1:
            log.warning("MLflow run %s: entry %s was not stored: %s", run.opened.run_id, _short(entries[0]), error)
            return
        for entry in entries:
            try:
                self._send(run, [entry])
            except EntryRefused as refused:
                self._send_singly(run, [entry], refused)

    def _send(self, run: StoreRun, entries: list[dict[str, Any]]) -> None:
        kind, first = entries[0]["kind"], entries[0]
        if kind in _TOGETHER:
            self._send_together(run, entries)
        elif kind == "start":
            run.set_running()
        elif kind == "end":
            run.set_ended(first["status"], first["time_ms"])
        elif kind == "dataset":
            run.log_dataset(first)
        elif kind in ("artifact", "event"):
            self._send_with_files(run, first)

    def _send_together(self, run: StoreRun, entries: list[dict[str, Any]]) -> None:
        points: list[Point] = []
        for entry in entries:
            if entry["kind"] == "metrics":
                points += _points(entry)
        run.log(points, _merged(entries, "params"), _merged(entries, "tags"))

    def _send_with_files(self, run: StoreRun, entry: dict[str, Any]) -> None:
        """Sends an artifact or an event, unless a later run has replaced its files."""
        if self._has_successor():
            self._pass_over_files()
        else:
            self._send_files(run, entry)

    def _send_files(self, run: StoreRun, entry: Mapping[str, Any]) -> None:
        paths: dict[str, Path] = {}
        try:
            paths = self._paths_of(entry)
            self._send_paths(run, entry, paths)
        except EntryRefused:
            self._release(paths)
            raise
        self._release(paths)

    def _send_paths(self, run: StoreRun, entry: Mapping[str, Any], paths: Mapping[str, Path]) -> None:
        for path in paths.values():
            check_contents(path, self._run_dir)
        if entry["kind"] == "artifact":
            self._send_artifact(run, paths["path"], entry["folder"])
        elif entry["event"] == "checkpoint":
            run.log_checkpoint(paths["folder"])
        elif entry["event"] == "model":
            run.log_model(paths["saved_model"], self.path)
        elif entry["event"] == "final_file":
            run.log_final_file(paths["path"])
        else:
            raise EntryRefused(f"unknown event {entry['event']!r}, expected one of {', '.join(EVENTS)}")

    def _send_artifact(self, run: StoreRun, path: Path, folder: str | None) -> None:
        if path == self._run_dir / SUMMARY:
            run_id.name_run(path, run.opened.run_id)
        run.log_artifact(path, folder)

    def _release(self, paths: Mapping[str, Path]) -> None:
        for path in paths.values():
            if outbox.is_held(path, self._run_dir):
                outbox.release(path)

    def _pass_over_files(self) -> None:
        """Skips the files of an entry. Files are read only when they are sent, and by now a later run has replaced the
        files of this entry."""
        if not self._warned:
            log.warning("%s: the run's files are not sent: a later run has replaced them (logged once)", self.path)
        self._warned = True


def next_batch(path: Path, offset: int) -> Batch:
    """Returns the entries to send in the next call. The batch is empty if there are no more entries."""
    batch = Batch(end=offset)
    for entry, end in journals.entries(path, offset):
        together = entry["kind"] in _TOGETHER
        if batch.entries and not (together and batch.entries[0]["kind"] in _TOGETHER):
            break
        batch.entries.append(entry)
        too_many = (
            batch.count("metrics") > POINTS_PER_BATCH
            or batch.count("params") > PARAMS_PER_BATCH
            or batch.count("tags") > TAGS_PER_BATCH
        )
        if too_many and len(batch.entries) > 1:
            batch.entries.pop()
            break
        batch.end = end
        if not together:
            break
    return batch


def unsent(path: Path, header: Header | None = None) -> int:
    """Returns the number of a journal's entries that have not been sent to the store of `header`, which defaults to the
    journal's own header. Returns 0 for a journal without a valid header, because such a journal cannot be sent."""
    if not journals.has_header(path):
        log.warning("%s has no valid header, perhaps because the disk was full, so it is not sent", path)
        return 0
    offset, _ = _read_position(path, header or journals.read_header(path))
    return sum(1 for _ in journals.entries(path, offset))


def _read_position(path: Path, header: Header) -> tuple[int, Opened | None]:
    """Returns the position up to which the journal has been sent to the store of `header`, and the store's run. Returns
    (0, None) if this user has recorded no such position."""
    try:
        if is_foreign(sent_path(path)):
            return 0, None
        fields = json.loads(read_regular(sent_path(path)))
        if (fields["journal_id"], fields["uri"]) != (header.journal_id, masked_uri(header.uri)):
            return 0, None
        offset, opened = fields["offset"], Opened(fields["run_id"], fields["experiment_id"])
        is_valid = type(offset) is int and 0 <= offset <= path.stat().st_size
        is_valid = is_valid and isinstance(opened.run_id, str) and isinstance(opened.experiment_id, str)
        return (offset, opened) if is_valid else (0, None)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return 0, None


def _points(entry: Mapping[str, Any]) -> list[Point]:
    """Returns the points of an entry."""
    return [Point(key, float(value), entry["time_ms"], entry["step"]) for key, value in entry["metrics"].items()]


def _merged(entries: list[dict[str, Any]], kind: str) -> dict[str, str]:
    merged: dict[str, str] = {}
    for entry in entries:
        if entry["kind"] == kind:
            merged.update(entry[kind])
    return merged


def _short(entry: Mapping[str, Any]) -> str:
    text = json.dumps(entry)
    return text if len(text) <= 200 else text[:200] + "…"
