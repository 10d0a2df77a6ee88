"""A tracking store in memory, for tests of what is sent when; tests of what MLflow makes of it use MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parallax_runner.track.mlflow.journal import Header
from parallax_runner.track.mlflow.store import EntryRefused, Opened, OutOfReach, Point, StoreRun


class FakeStore:
    """Every call in order. `up` says whether it answers; `refused_keys` are metrics that it refuses,
    `copy_failures` what its next copies of files raise, `reads` the contents of files that it was given,
    `headers` those of the runs that were opened."""

    def __init__(self) -> None:
        self.up = True
        self.refused_keys: set[str] = set()
        self.run_id: str | None = None
        self.calls: list[tuple[str, Any]] = []
        self.points: list[Point] = []
        self.params: dict[str, str] = {}
        self.parents: list[str | None] = []
        self.error: Exception | None = None
        self.copy_failures: list[Exception] = []
        self.reads: list[str] = []
        self.headers: list[Header] = []

    def open_run(self, header: Header, known: Opened | None, parent_run_id: str | None) -> StoreRun:
        """An OpenRun."""
        self.answer("open", known)
        self.headers.append(header)
        self.parents.append(parent_run_id)
        return FakeRun(self, known or Opened(self.run_id or f"run-{header.journal_id[:4]}", "1"))

    def answer(self, call: str, what: Any) -> None:
        """Notes a call, if it can be heard."""
        if self.error is not None:
            raise self.error
        if not self.up:
            raise OutOfReach("down")
        self.calls.append((call, what))

    @property
    def names(self) -> list[str]:
        """The calls' names."""
        return [name for name, _ in self.calls]


class FakeRun:
    """A StoreRun."""

    def __init__(self, store: FakeStore, opened: Opened) -> None:
        self.store, self.opened = store, opened

    def log(self, points: Sequence[Point], params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Keeps them all, or none."""
        if {point.key for point in points} & self.store.refused_keys:
            raise EntryRefused("no such key")
        self.store.answer("log", (len(points), len(params), len(tags)))
        self.store.points += points
        self.store.params |= params

    def log_artifact(self, path: Path, folder: str | None) -> None:
        """Notes it."""
        if self.store.copy_failures:
            raise self.store.copy_failures.pop(0)
        self.store.answer("artifact", (path, folder))
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        self.store.reads += [file.read_text(errors="replace") for file in files]

    def log_final_file(self, path: Path) -> None:
        """Notes it."""
        self.store.answer("event", ("final_file", path))

    def log_checkpoint(self, folder: Path) -> None:
        """Notes it."""
        self.store.answer("event", ("checkpoint", folder))

    def log_model(self, saved_model: Path, journal: Path) -> None:
        """Notes it."""
        self.store.answer("event", ("model", saved_model))

    def log_dataset(self, fields: Mapping[str, Any]) -> None:
        """Notes its context."""
        self.store.answer("dataset", fields["context"])

    def set_running(self) -> None:
        """Notes it."""
        self.store.answer("running", None)

    def set_ended(self, status: str, time_ms: int) -> None:
        """Notes it."""
        self.store.answer("ended", status)
