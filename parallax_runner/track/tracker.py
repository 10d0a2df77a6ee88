"""What a tracker is, and the one that records nothing; imports nothing heavy."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

Status = Literal["finished", "failed", "interrupted"]


class Tracker(Protocol):
    """Records one run. Except for opening it, nothing waits for the store or raises because of it: training goes on."""

    @property
    def run_id(self) -> str | None:
        """The store's name for this run, None while it is not known, or if nothing is recorded."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Records the resolved configuration, nested as it is."""

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Records numbers of one step, such as `train/loss`; None is left out, and so is a step not beyond the last
        one recorded under the same name."""

    def log_sample(self, metrics: Mapping[str, float]) -> None:
        """Records numbers that belong to no step, such as `system/…`: they are counted one after another."""

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Records tags; a later value replaces an earlier one."""

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Records a file, or a folder with all that is in it, in `folder` of the artifacts; read when it is sent."""

    def log_event(self, kind: str, **paths: str | Path) -> None:
        """Leaves files to `track/mlflow_<kind>.py`, whose `send(client, run_id, paths)` is called in its turn."""

    def end(self, status: Status, hurry: Callable[[], bool] = lambda: False) -> None:
        """Waits a bounded time for what is left to be sent, a short one where `hurry()` holds, and closes the run; the
        first call counts."""


class NoTracker:
    """Records nothing: tracking=off."""

    run_id: str | None = None

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Does nothing."""

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Does nothing."""

    def log_sample(self, metrics: Mapping[str, float]) -> None:
        """Does nothing."""

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Does nothing."""

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Does nothing."""

    def log_event(self, kind: str, **paths: str | Path) -> None:
        """Does nothing."""

    def end(self, status: Status, hurry: Callable[[], bool] = lambda: False) -> None:
        """Does nothing."""
