"""What sending a journal needs of a tracking store, and the ways in which it may fail. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from parallax_runner.track.mlflow.journal import Header


class OutOfReach(Exception):
    """The store does not answer, or not as it should: the same may work later."""


class ParentUnknown(OutOfReach):
    """The run of a sweep's job cannot be made before that of the sweep."""


class CopyFailed(OutOfReach):
    """The store answers, but a file could not be copied. Who opened the run gives up that file after a few times."""


class Refused(Exception):
    """The store will not take this run as things are: a missing driver, credentials that it does not know."""


class Gone(Refused):
    """It never will: the run or its experiment was deleted."""


class EntryRefused(Exception):
    """The store takes the run, but not this part of it."""


class Point(NamedTuple):
    """One number of one step; `time_ms` is Unix time."""

    key: str
    value: float
    time_ms: int
    step: int


@dataclass(frozen=True)
class Opened:
    """The store's run of a journal. `floors` are the last steps, by metric, that it had before this journal's first."""

    run_id: str
    experiment_id: str
    floors: Mapping[str, int] = field(default_factory=dict)


class StoreRun(Protocol):
    """A run of the store that is open for writing. Everything may be done twice with the effect of once."""

    opened: Opened

    def log(self, points: Sequence[Point], params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Adds at most 1000 points, 100 parameters and 100 tags."""

    def log_artifact(self, path: Path, folder: str | None) -> None:
        """Copies a file or a folder."""

    def log_event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Hands an event to the module that knows its kind."""

    def log_dataset(self, fields: Mapping[str, Any]) -> None:
        """Makes a data set an input of the run."""

    def log_of_model(self, step: int, points: Sequence[Point], datasets: Mapping[str, Mapping[str, str]]) -> None:
        """Adds points that the run has to the logged model of a step, if there is one; `datasets` has name and digest
        by context."""

    def set_running(self) -> None:
        """Says that the run goes on."""

    def set_ended(self, status: str, time_ms: int) -> None:
        """Says how the run ended: finished, failed or interrupted."""


# Header, what is known of the run from before, the parent's run id → the open run.
OpenRun = Callable[[Header, Opened | None, str | None], StoreRun]
