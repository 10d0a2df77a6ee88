"""The files that a run passes to its tracker: its record, logs, plots, checkpoints and exported models."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from parallax_runner.config import frozen
from parallax_runner.config.launchers import launcher_class
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.recovery import FAILURE
from parallax_runner.export.checkpoints import CheckpointArtifacts
from parallax_runner.launch.logs import own_logs
from parallax_runner.plan import outcome
from parallax_runner.planning.cost import measured
from parallax_runner.profile import run_metadata_files as profile_files
from parallax_runner.track.tracker import Tracker

log = logging.getLogger(__name__)


class RunArtifacts:
    """The artifacts of one run. Create this object before the launch: checkpoints that already exist are attributed to
    another run."""

    def __init__(self, config: RunConfig, run_dir: Path, tracker: Tracker) -> None:
        self._run_dir, self._tracker, self._is_tracked = run_dir, tracker, config.tracking.enabled
        self._profile_config = config.profile
        self._launcher_program = launcher_class(config).program
        which = config.tracking.log_checkpoints if self._is_tracked and config.ckpt.enabled else "none"
        ckpt_dir = Path(config.ckpt.folder) if config.ckpt.enabled else run_dir
        self._checkpoints = CheckpointArtifacts(which, ckpt_dir, run_dir, tracker.log_checkpoint)

    def on_checkpoint(self, prefix: Path) -> None:
        """Records a checkpoint that has been written."""
        self._checkpoints.on_checkpoint(prefix)

    def close(self, summary_path: Path, saved_model: str | None, keras_model: str | None = None) -> None:
        """Logs all artifacts at the end of the run, small artifacts first. `saved_model` is a folder, and `keras_model`
        is a file. Never raises, because the run has ended: an error is printed as a note."""
        if not self._is_tracked:
            return
        try:
            self._log(summary_path, saved_model, keras_model)
        except Exception as error:  # such as a folder that was removed, or a full disk
            log.warning("the artifacts are incomplete: %s", error, exc_info=True)
            print(f"parallax_runner: some files of this run were not recorded: {error}", file=sys.stderr)

    def _log(self, summary_path: Path, saved_model: str | None, keras_model: str | None) -> None:
        record = (self._run_dir / frozen.FILE_NAME, self._run_dir / "plan.json", summary_path)
        sometimes = [self._run_dir / name for name in (FAILURE, outcome.FILE_NAME, measured.FILE_NAME)]
        for path in (*record, *(path for path in sometimes if path.exists()), *self._plots()):
            self._tracker.log_artifact(path)
        for path in own_logs(self._run_dir, self._launcher_program):
            self._tracker.log_artifact(path, "logs")
        for path in self._profile():
            self._tracker.log_artifact(path, "profile")
        self._checkpoints.close()
        if saved_model is not None:
            self._tracker.log_model(Path(saved_model))
        if keras_model is not None:
            self._tracker.log_final_file(Path(keras_model))

    def _profile(self) -> list[Path]:
        folder = self._profile_config.dir
        return [] if self._profile_config.name == "off" or folder is None else profile_files.artifacts(Path(folder))

    def _plots(self) -> list[Path]:
        from parallax_runner.track import plots

        try:
            return [self._run_dir / plots.FOLDER] if plots.plot_run(self._run_dir, self._tracker.history()) else []
        except Exception as error:  # such as a broken font cache or a full disk; the numbers are recorded nevertheless
            log.warning("cannot draw the plots: %s: %s", type(error).__name__, error)
            return []
