"""The driver's tracker. It appends to the journal without waiting, while a thread sends the journal to MLflow."""

from __future__ import annotations

import dataclasses
import logging
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from parallax_runner.config.hydra_quotes import quoted
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.files.credentials import masked_uri
from parallax_runner.track.mlflow import journal as journals
from parallax_runner.track.mlflow import outbox, runs
from parallax_runner.track.mlflow.delivery import PARAMS_PER_BATCH, POINTS_PER_BATCH, unsent
from parallax_runner.track.mlflow.journal import Header, Journal, as_json
from parallax_runner.track.mlflow.killed import end_open_journals
from parallax_runner.track.mlflow.run_id import forget_run, read_run_id
from parallax_runner.track.mlflow.sender import Sender
from parallax_runner.track.mlflow.store import OpenRun
from parallax_runner.track.params import flatten, valid_key
from parallax_runner.track.tracker import DatasetFacts, History, Status, Tracker

log = logging.getLogger(__name__)


class JournalTracker(Tracker):
    """Records one run in the journal of the run's directory. Create the tracker when the run is about to start.

    If `goes_on` is set, the run continues the directory's latest journal and the MLflow run of that journal; otherwise
    it begins a new journal. `summary` contains the fields that are written to `summary.json` if the driver is killed.
    Raises ConfigError if another run is active in the directory, and StorageError if the journal cannot be created.
    """

    def __init__(
        self,
        run_dir: Path,
        header: Header,
        *,
        goes_on: bool = False,
        summary: Mapping[str, Any] | None = None,
        open_run: OpenRun = runs.open_run,
    ) -> None:
        self._run_dir = run_dir = run_dir.resolve()
        self._ended = False
        self._held = ExitStack()
        try:
            self._held.enter_context(journals.writing(run_dir, wait_secs=journals.LOCK_WAIT_SECS))
        except BlockingIOError as error:
            raise ConfigError("another run uses this directory.").about(
                Setting.of("run_dir", run_dir), remedy="Wait until it ends, or set hydra.run.dir=ANOTHER"
            ) from error
        except OSError as error:
            raise ConfigError(f"the journal cannot be written: {error}").about(
                Setting.of("run_dir", run_dir)
            ) from error
        before = journals.begun(run_dir)
        if goes_on and before:
            self._journal = Journal(before[-1])
            self._last_steps = journals.standing(before[-1]).last_steps
            was = journals.read_header(before[-1])
            present = dataclasses.replace(was, uri=header.uri, parent=header.parent)
            if header.experiment != was.experiment:
                log.warning("the run continues in experiment %s, not in %s", was.experiment, header.experiment)
        else:
            # The new run has replaced the files of the old run.
            end_open_journals(run_dir, before, with_files=False)
            forget_run(run_dir)
            self._journal = Journal(journals.next_journal(run_dir), header)
            self._last_steps = {}
            present = header
        self._uri = masked_uri(header.uri)
        self._journal.append_start(summary=dict(summary or {}))
        if goes_on:
            self.set_tags(header.tags)
        runs.prepare_environment()
        self._sender = Sender(self._journal.path, open_run, present)

    @property
    def run_id(self) -> str | None:
        """The MLflow run's id, or None until MLflow has created the run."""
        return self._sender.run_id or read_run_id(self._run_dir)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Records a nested configuration as flat parameters, such as `comm.name`."""
        for some in _in_parts(flatten(params), PARAMS_PER_BATCH):
            self._journal.append("params", params=some)

    def log_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Records the metrics of one step. Omits metrics that are None or that were recorded for this step before a
        resume."""
        known = {valid_key(key): float(value) for key, value in metrics.items() if value is not None}
        fresh = {key: value for key, value in known.items() if step > self._last_steps.get(key, -1)}
        for some in _in_parts(fresh, POINTS_PER_BATCH):
            finite = {key: as_json(value) for key, value in some.items()}
            self._journal.append("metrics", step=step, time_ms=journals.now_ms(), metrics=finite)
        self._last_steps.update(dict.fromkeys(fresh, step))

    def log_sample(self, metrics: Mapping[str, float]) -> None:
        """Records metrics without a step, under the next free sample number."""
        self.log_metrics(1 + max((self._last_steps.get(valid_key(key), -1) for key in metrics), default=-1), metrics)

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Records tags."""
        self._journal.append("tags", tags={valid_key(str(key)): str(value) for key, value in tags.items()})

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Records a file or folder, which is copied when the entry is sent. A path outside the run's folder may be
        copied to the outbox immediately; later changes are then not included."""
        name = self._in_run(path)
        if name is not None:
            self._journal.append("artifact", path=name, folder=folder)

    def log_final_file(self, path: Path) -> None:
        """Records a file, which is linked or copied when the entry is sent."""
        self._log_event("final_file", path=path)

    def log_dataset(self, dataset: DatasetFacts) -> None:
        """Records a dataset. MLflow keeps one dataset per name and digest."""
        self._journal.append("dataset", **dataclasses.asdict(dataset))

    def log_checkpoint(self, folder: Path) -> None:
        """Records a checkpoint that is in the outbox. `checkpoint.py` sends the checkpoint."""
        self._log_event("checkpoint", folder=folder)

    def log_model(self, saved_model: Path) -> None:
        """Records a SavedModel, which `model.py` sends."""
        self._log_event("model", saved_model=saved_model)

    def history(self) -> History:
        """Returns all metrics in the journal and the tags in its header."""
        metrics: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for entry, _ in journals.entries(self._journal.path):
            if entry["kind"] == "metrics":
                for key, value in entry["metrics"].items():
                    metrics[key].append((entry["step"], float(value)))
        return History(metrics, journals.read_header(self._journal.path).tags)

    def _log_event(self, kind: str, **paths: Path) -> None:
        names = {key: self._in_run(path) for key, path in paths.items()}
        if None not in names.values():
            self._journal.append("event", event=kind, fields=names)

    def _in_run(self, path: str | Path) -> str | None:
        """Returns the path relative to the run's folder, so that the folder can be moved later. Puts a path outside the
        folder into the outbox; returns None if this fails."""
        whole = Path(path).absolute()
        try:
            if not (whole.is_relative_to(self._run_dir) and whole.resolve().is_relative_to(self._run_dir)):
                whole = outbox.hold(whole, self._run_dir)
        except OSError as error:
            log.warning("%s was not logged as an artifact: %s", path, error)
            return None
        return str(whole.relative_to(self._run_dir))

    def end(self, status: Status, hurry: Callable[[], bool] = lambda: False) -> None:
        """Records how the run ended and waits until the remaining entries are sent. If entries remain unsent, prints
        their number and the command that sends them."""
        if self._ended:
            return
        self._ended = True
        self._journal.append_end(status)
        if not self._sender.close(hurry):
            waiting = unsent(self._journal.path)
            trouble = self._sender.trouble
            reason = "sending took too long" if trouble is None else trouble.reason
            command = ["python", "-m", "parallax_runner", "action=sync", f"run_dir={quoted(str(self._run_dir))}"]
            print(
                f"parallax_runner: MLflow ({self._uri}) has not received {waiting} entries of this run: "
                f"{reason}. To send them, run\n"
                f"    {shlex.join(command)}",
                file=sys.stderr,
            )
        self._journal.close()
        self._held.close()


def _in_parts(mapping: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    items = list(mapping.items())
    return [dict(items[start : start + size]) for start in range(0, len(items), size)]
