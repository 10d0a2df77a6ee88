"""What a tracker is, and the one that records nothing; imports nothing heavy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

Status = Literal["finished", "failed", "interrupted"]


class Tracker(Protocol):
    """Records one run. Except for opening it, nothing raises because the store is out of reach: training goes on."""

    @property
    def run_id(self) -> str | None:
        """The store's name for this run, None if nothing is recorded."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Records the resolved configuration, nested as it is."""

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Records numbers of one step, such as `train/loss`; None is left out. Returns at once."""

    def log_artifact(self, path: str | Path) -> None:
        """Records a file, or a folder with all that is in it."""

    def end(self, status: Status) -> None:
        """Sends what is left and closes the run; the first call counts."""


class NoTracker:
    """Records nothing: tracking=off."""

    run_id: str | None = None

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Does nothing."""

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Does nothing."""

    def log_artifact(self, path: str | Path) -> None:
        """Does nothing."""

    def end(self, status: Status) -> None:
        """Does nothing."""
