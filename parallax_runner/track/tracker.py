"""The interface of a tracker, which records a run. Imports no heavy packages.

`tracking.tracker` in the configuration names the class (`config/trackers.py` looks it up), so a package outside this
repository can provide a tracker (see `docs/extending.md`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from parallax_runner.config.trackers import tracker_class
from parallax_runner.errors import ConfigError, Setting

Status = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True)
class Start:
    """The checkpoint from which a run starts: the checkpoint's path prefix and the run id in its sidecar."""

    checkpoint: Path
    run_id: str | None


@dataclass(frozen=True)
class RunInfo:
    """The driver's information about a run when the driver opens the tracker.

    `config` is the configuration, in which a value that depends on an environment variable is its interpolation. The
    settings under `tracking` have their values. `tags` describe the run (model, comm, workers, servers, the user's
    `tracking.tags`), and `origin` describes the run's origin (user, command, git.commit, git.dirty, parallax.version,
    parallax.commit). `start` is None if training starts without a checkpoint. `sweep_dir` is the sweep's folder if the
    run is a job of a sweep. If `is_sweep` is set, the run is the parent run of a sweep's jobs: `run_dir` is the sweep's
    folder and `config` is the configuration of the first job.
    `summary` contains the fields of `summary.json` that are already known.
    """

    run_dir: Path
    name: str
    config: Mapping[str, Any]
    tags: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)
    start: Start | None = None
    sweep_dir: Path | None = None
    is_sweep: bool = False
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetFacts:
    """A dataset that a run reads. `context` is `training` or `validation`; `digest` distinguishes the dataset from
    other datasets with the same name. `features` maps the name of each feature to the `shape` of one example (None for
    an unknown size), the `dtype` and, if the feature is not dense, the `kind`. `examples` is the number of examples,
    and `source` is the configuration of the data."""

    name: str
    digest: str
    context: str
    features: Mapping[str, Any]
    examples: int
    source: Mapping[str, Any]


@dataclass(frozen=True)
class History:
    """The recorded (step, value) pairs of each metric, including pairs from before a resume, and the tags that were set
    when the run began. Both fields are empty if the tracker cannot read back its records."""

    metrics: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


class Tracker:
    """Records one run. The driver creates the tracker after planning, before it launches any process.

    By default, nearly all methods do nothing, so a subclass overrides only the methods that it needs. Only `check`,
    `sync` and the constructor may raise. A ConfigError leads to exit status 2. An exception in any other method is
    printed once as a note, and the run continues (`track/careful.py`). The methods must not make the driver wait.
    Import the server's package inside methods, because workers and the configuration check import the class too.

    Class attributes:
        has_options: it reads `tracking.options`, the untyped keys of trackers from other packages.
        needs_experiment: it needs `tracking.experiment`.
        stores_in_database: `tracking.uri` can name an SQLite database, which must be a file.
        uri_variable: the environment variable with the URI of its store for `tracking.uri=null`, or None.
    """

    has_options: ClassVar[bool] = True
    needs_experiment: ClassVar[bool] = False
    stores_in_database: ClassVar[bool] = False
    uri_variable: ClassVar[str | None] = None

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> None:
        """Checks the configuration. The driver calls this method first, in the folder where the command was started.
        Raises ConfigError if nothing can be recorded with this configuration."""

    @classmethod
    def sync(cls, folder: Path, given: Mapping[str, Any]) -> None:
        """Sends the unsent records of the runs in `folder` and its subfolders. `action=sync` calls this method. `given`
        contains the keys under `tracking` that the command line sets. Raises ConfigError or TrackingError."""
        raise ConfigError(f"{cls.__name__} stores no records to send later, so there is nothing to send").about(
            Setting("action", "sync")
        )

    @classmethod
    def run_id_in(cls, run_dir: Path) -> str | None:
        """Returns the id of the run in `run_dir`, or None while the id is unknown. The chief writes the id into the
        sidecar of each checkpoint. A run that resumes from the checkpoint finds the id in `RunInfo.start`."""
        return None

    def __init__(self, run: RunInfo) -> None:
        """Opens the run."""

    @property
    def run_id(self) -> str | None:
        """The store's id for this run, or None while the id is unknown. `summary.json` contains the id."""
        return None

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Records the nested configuration, which `track/params.py` can flatten. This method is called once, after the
        run has been opened."""

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Records the metrics of one step, such as `train/loss`. None means that a value is unknown. After a restart,
        some steps are recorded a second time. In this case, keep the values that were recorded first."""

    def log_sample(self, metrics: Mapping[str, float]) -> None:
        """Records metrics that have no step, such as `system/…`. A thread of the driver calls this method every 10
        seconds."""

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Records tags. A later value of a tag replaces an earlier value."""

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Records a file, or a folder with its contents, under `folder` in the artifacts."""

    def log_final_file(self, path: Path) -> None:
        """Records a file to which nothing writes later, so a tracker on the same file system can link it. By default,
        the file is an artifact like others."""
        self.log_artifact(path)

    def log_dataset(self, dataset: DatasetFacts) -> None:
        """Records a dataset that the run reads. This method is called after the run has been opened, and again when a
        run is resumed."""

    def log_checkpoint(self, folder: Path) -> None:
        """Records a copy of a checkpoint that `tracking.log_checkpoints` selects. The tracker deletes `folder` when the
        copy is no longer needed."""
        shutil.rmtree(folder, ignore_errors=True)

    def log_model(self, saved_model: Path) -> None:
        """Records the folder that contains the trained model's SavedModel. This method is called once, at the end."""

    def history(self) -> History:
        """Returns the recorded metrics and tags, from which the driver draws the run's plots at the end."""
        return History()

    def end(self, status: Status, hurry: Callable[[], bool] = lambda: False) -> None:
        """Closes the run. The method can wait for a limited time until the remaining records are sent, but only briefly
        if `hurry()` returns true. Only the first call has an effect."""


class NoTracker(Tracker):
    """Records nothing. Used for tracking=off."""

    def __init__(self) -> None:
        """Opens nothing."""


def find_tracker(name: str) -> type[Tracker]:
    """Returns the class that `tracking.tracker` names. Raises LookupError."""
    return cast(type[Tracker], tracker_class(name))
