"""A tracker whose failures never end a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from parallax_runner.files.credentials import masked
from parallax_runner.track.tracker import DatasetFacts, History, Status, Tracker

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class CarefulTracker(Tracker):
    """Calls another tracker. If a method of the other tracker raises an exception, the run continues, because training
    does not depend on its record: the first exception is printed as a note, and all exceptions are in the log."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._has_told = False

    @property
    def run_id(self) -> str | None:
        """The other tracker's id for this run, or None if it is unknown."""
        return self._tried("run_id", lambda: self._tracker.run_id, None)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Calls the other tracker."""
        self._tried("log_params", lambda: self._tracker.log_params(params), None)

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Calls the other tracker."""
        self._tried("log_metrics", lambda: self._tracker.log_metrics(step, metrics), None)

    def log_sample(self, metrics: Mapping[str, float]) -> None:
        """Calls the other tracker."""
        self._tried("log_sample", lambda: self._tracker.log_sample(metrics), None)

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Calls the other tracker."""
        self._tried("set_tags", lambda: self._tracker.set_tags(tags), None)

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Calls the other tracker."""
        self._tried("log_artifact", lambda: self._tracker.log_artifact(path, folder), None)

    def log_final_file(self, path: Path) -> None:
        """Calls the other tracker."""
        self._tried("log_final_file", lambda: self._tracker.log_final_file(path), None)

    def log_dataset(self, dataset: DatasetFacts) -> None:
        """Calls the other tracker."""
        self._tried("log_dataset", lambda: self._tracker.log_dataset(dataset), None)

    def log_checkpoint(self, folder: Path) -> None:
        """Calls the other tracker."""
        self._tried("log_checkpoint", lambda: self._tracker.log_checkpoint(folder), None)

    def log_model(self, saved_model: Path) -> None:
        """Calls the other tracker."""
        self._tried("log_model", lambda: self._tracker.log_model(saved_model), None)

    def history(self) -> History:
        """Returns the other tracker's history, or an empty history if it cannot be read."""
        return self._tried("history", self._tracker.history, History())

    def end(self, status: Status, hurry: Callable[[], bool] = lambda: False) -> None:
        """Calls the other tracker."""
        self._tried("end", lambda: self._tracker.end(status, hurry), None)

    def _tried(self, name: str, call: Callable[[], Result], otherwise: Result) -> Result:
        try:
            return call()
        except Exception as error:
            told = masked(f"{type(self._tracker).__name__}.{name}: {type(error).__name__}: {error}")
            log.warning("%s", told, exc_info=True)
            if not self._has_told:
                self._has_told = True
                print(
                    f"parallax_runner: the record of this run is incomplete, because the tracker failed in {told}. The "
                    "run continues (this note is printed once)",
                    file=sys.stderr,
                )
            return otherwise
