"""The interface of a tracker: what records a run. Imports nothing heavy.

`tracking.tracker` in the configuration names the class (`config/trackers.py` says where a name is looked for), so a
package outside this repository can bring one: `docs/extending.md`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from parallax_runner.config.trackers import tracker_class
from parallax_runner.errors import ConfigError

Status = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True)
class Start:
    """The checkpoint that a run starts from: its prefix, and the run id that its sidecar names."""

    checkpoint: Path
    run_id: str | None


@dataclass(frozen=True)
class RunInfo:
    """What the driver knows of a run when it opens its tracker.

    `config` is the resolved configuration; its group `tracking` has the tracker's own settings in `options`. `tags` say
    what the run is (model, comm, workers, servers, the user's `tracking.tags`), `origin` where it comes from (user,
    command, git.commit, git.dirty, parallax.version, parallax.commit). `start` is None where training starts from
    nothing. `sweep_dir` is the folder of the sweep that the run is a job of. `is_sweep`: this is the run above a
    sweep's jobs, in the sweep's folder `run_dir`, with the configuration of the first job. `summary` is `summary.json`
    as far as it is known.
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
    """What is known of a data set of a run. `context` is «training» or «validation», `digest` tells it from others of
    its name. `features` map a name to `shape` (of one example; None in it: not known), `dtype` and, if it is not
    dense, `kind`. `examples` is their number, `source` what it is made of: the configuration of the data."""

    name: str
    digest: str
    context: str
    features: Mapping[str, Any]
    examples: int
    source: Mapping[str, Any]


@dataclass(frozen=True)
class History:
    """The (step, value) pairs recorded of each metric, those before a resume included, and the tags of the run's start;
    both are empty where a tracker cannot tell."""

    metrics: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


class Tracker:
    """Records one run. The driver opens it by calling the class, after planning and before it launches anything.

    Every method here does nothing, so a tracker defines those that it needs. Only `check` and the constructor may raise
    (ConfigError: exit status 2, the configuration is wrong). An exception of any other method ends the run, so a
    tracker that talks to a server catches its errors, and does not make the driver wait. Import the server's package
    inside methods: the class itself is imported to check the configuration, and in workers.
    """

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> None:
        """The driver calls it first of all, in the folder of the command. Raises ConfigError where nothing can ever be
        recorded as the configuration says."""

    @classmethod
    def sync(cls, folder: Path, given: Mapping[str, Any]) -> None:
        """`action=sync` calls it to send what runs in `folder` and below have recorded and not sent. `given` are the
        keys of the group `tracking` that the command line sets. Raises ConfigError or TrackingError."""
        raise ConfigError(f"action=sync: {cls.__name__} leaves nothing to be sent later; leave it out")

    @classmethod
    def run_id_in(cls, run_dir: Path) -> str | None:
        """The run id of the run in `run_dir`, None while it is not known. The chief calls it for each checkpoint, whose
        sidecar then names the run; whoever resumes from the checkpoint finds it in `RunInfo.start`."""
        return None

    def __init__(self, run: RunInfo) -> None:
        """Opens the run."""

    @property
    def run_id(self) -> str | None:
        """The store's name for this run, None while it is not known; it stands in `summary.json`."""
        return None

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Records the configuration, nested as it is (`track/params.py` flattens it); called once, after opening."""

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Records numbers of one step, such as `train/loss`; None stands for what is not known. After a restart steps
        come a second time: record the first."""

    def log_sample(self, metrics: Mapping[str, float]) -> None:
        """Records numbers that belong to no step, `system/…`; a thread of the driver calls it every 10 s."""

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Records tags; a later value replaces an earlier one."""

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Records a file, or a folder with its contents, under `folder` of the artifacts."""

    def log_dataset(self, dataset: DatasetFacts) -> None:
        """Records a data set that the run reads; after opening, again when a run goes on."""

    def log_checkpoint(self, folder: Path) -> None:
        """Records a copy of a checkpoint, as `tracking.log_checkpoints` asks for. The tracker deletes `folder` when it
        needs it no longer."""
        shutil.rmtree(folder, ignore_errors=True)

    def log_model(self, saved_model: Path) -> None:
        """Records the folder of the trained model's SavedModel, once, at the end."""

    def history(self) -> History:
        """What was recorded; the driver draws the run's plots from it at the end."""
        return History()

    def end(self, status: Status, hurry: Callable[[], bool] = lambda: False) -> None:
        """Closes the run; may wait a bounded time to send the rest, a short one where `hurry()` holds. The first call
        counts."""


class NoTracker(Tracker):
    """Records nothing: tracking=off."""

    def __init__(self) -> None:
        """Opens nothing."""


def find_tracker(name: str) -> type[Tracker]:
    """The class that `tracking.tracker` names. Raises LookupError."""
    return cast(type[Tracker], tracker_class(name))
