"""The interface of a tracking store that receives a journal, and its errors. Imports no heavy packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from parallax_runner.track.mlflow.journal import Header


class StoreError(Exception):
    """The store cannot be used. `reason` says why. `uri` is the masked URI of the store if it may be the cause."""

    def __init__(self, reason: str, *, uri: str | None = None) -> None:
        super().__init__(reason if uri is None else f"tracking.uri={uri}: {reason}")
        self.reason = reason


class OutOfReach(StoreError):
    """The store does not answer, or answers with a temporary error. A retry may succeed."""


class ParentUnknown(OutOfReach):
    """The run of a sweep's job cannot be created yet, because the run of the sweep does not exist."""


class CopyFailed(OutOfReach):
    """The store answers, but a file could not be copied. After a few attempts, the StoreRun stops trying to copy the
    file."""


class Refused(StoreError):
    """The store refuses this run in the current setup, for example because of a missing driver or wrong credentials."""


class Gone(Refused):
    """The store will never accept this run: the run or its experiment was deleted."""


class EntryRefused(Exception):
    """The store accepts the run but refuses this entry."""


class Point(NamedTuple):
    """One metric value at one step. `time_ms` is Unix time."""

    key: str
    value: float
    time_ms: int
    step: int


@dataclass(frozen=True)
class Opened:
    """The store's run for a journal."""

    run_id: str
    experiment_id: str


class StoreRun(Protocol):
    """A run in the store that is open for writing. All methods are idempotent."""

    opened: Opened

    def log(self, points: Sequence[Point], params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Adds at most 1000 points, 100 parameters and 100 tags."""

    def log_artifact(self, path: Path, folder: str | None) -> None:
        """Copies a file or a folder."""

    def log_final_file(self, path: Path) -> None:
        """Links or copies a file to which nothing writes later."""

    def log_checkpoint(self, folder: Path) -> None:
        """Moves a checkpoint to the run's artifacts. Does nothing if the folder does not exist."""

    def log_model(self, saved_model: Path, journal: Path) -> None:
        """Adds a SavedModel, with the metrics that the journal has of its step."""

    def log_dataset(self, fields: Mapping[str, Any]) -> None:
        """Makes a dataset an input of the run."""

    def set_running(self) -> None:
        """Marks the run as running."""

    def set_ended(self, status: str, time_ms: int) -> None:
        """Marks the run as finished, failed or interrupted."""


# Takes the header, the run if it is already known, and the parent's run id. Returns the open run.
OpenRun = Callable[[Header, Opened | None, str | None], StoreRun]
