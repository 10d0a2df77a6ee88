"""Recovery after a failure: the checkpoint for an automatic restart, and `failure.json` for a restart by the user."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_runner.checkpoints.checkpoint_files import newest_write_number, read_sidecar
from parallax_runner.checkpoints.start import find_start
from parallax_runner.config.resume_command import resume_command
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import CheckpointError
from parallax_runner.files.whole import write_whole
from parallax_runner.launch.blame.first_death import Failure
from parallax_runner.launch.processes import RunResult

log = logging.getLogger(__name__)

FAILURE = "failure.json"


@dataclass
class Restarts:
    """Counts the restarts of a run. `done` is the number of restarts after failures so far, and `most` is the maximum
    number. `left` is the number of restarts because a process had to end and has said so. No steps are lost then, so
    their number has no maximum if the run `trains`. If the number of workers may change (`is_elastic`), only the
    restarts since the last checkpoint, `unsaved`, have a maximum number: losses of processes are expected."""

    most: int
    trains: bool = True
    is_elastic: bool = False
    done: int = 0
    left: int = 0
    unsaved: int = 0

    @property
    def all(self) -> int:
        """The number of restarts so far."""
        return self.done + self.left

    def count(self, failure: Failure) -> None:
        """Counts a restart after a failure."""
        if failure.is_leaving:
            self.left += 1
        else:
            self.done += 1
            self.unsaved += 1

    def on_checkpoint(self) -> None:
        """Called when the run has saved a checkpoint."""
        self.unsaved = 0

    @property
    def counted(self) -> int:
        """The number of restarts that is compared with the maximum number."""
        return self.unsaved if self.is_elastic else self.done

    def failure_to_retry(self, result: RunResult, *, was_stopped: bool) -> Failure | None:
        """Returns the failure after which the run should restart, or None if it should not restart."""
        failure = result.failure
        if failure is None or failure.recurs or was_stopped:
            return None
        is_allowed = self.trains if failure.is_leaving else self.counted < self.most
        return failure if is_allowed else None


@dataclass(frozen=True)
class Recovery:
    """The facts about a run that must be recorded before the run begins. In `config`, `ckpt.resume` is resolved, while
    `resume` is the user's original value. `before` is the write number of the newest checkpoint that is in the folder
    before the run begins. All checkpoints that this run writes have higher numbers."""

    run_dir: Path
    config: RunConfig
    resume: str
    before: int

    @classmethod
    def of(cls, config: RunConfig, resume: str) -> Recovery:
        """Returns the facts for a run that is about to begin."""
        before = newest_write_number(Path(config.ckpt.folder)) if config.ckpt.enabled else 0
        return cls(Path(config.run_dir), config, resume, before)

    @property
    def first_step(self) -> int:
        """The number of steps that were done before the run began."""
        return step_of(self.config)

    def newest_own(self) -> Path | None:
        """Returns the newest complete checkpoint that this run has written, or None."""
        if not self.config.ckpt.enabled:
            return None
        try:
            start = find_start("auto", Path(self.config.ckpt.folder))
            is_own = start.prefix is not None and self._has_written(start.prefix)
        except (CheckpointError, OSError) as error:
            log.warning("%s", error)
            return None
        for note in start.notes:
            log.warning("%s", note)
        return start.prefix if is_own else None

    def newest(self) -> Path | None:
        """Returns the checkpoint from which the run can continue, or None. This is the newest complete checkpoint of
        the run or, if there is none, the checkpoint from which the run began."""
        began = self.config.ckpt.resume
        return self.newest_own() or (None if began == "never" or not self.config.ckpt.enabled else Path(began))

    def _has_written(self, prefix: Path) -> bool:
        try:
            is_here = os.path.samefile(prefix.parent, self.config.ckpt.folder)
            return is_here and read_sidecar(prefix).write_number > self.before
        except (CheckpointError, OSError):  # a broken disk may be the cause of the failure
            return False

    def again(self) -> RunConfig:
        """Returns the configuration for another attempt. The attempt starts from the newest checkpoint if there is
        one."""
        newest = self.newest()
        return self.config if newest is None else continued(self.config, str(newest))

    def command(self, ckpt_path: str | None) -> str | None:
        """Returns the command that continues this run. `ckpt_path` is the run's newest checkpoint."""
        has_own = ckpt_path is not None and self.config.ckpt.enabled and self._has_written(Path(ckpt_path))
        return resume_command(self.run_dir, has_own_checkpoint=has_own, resume=self.resume)

    def leave_failure(self, failure: Failure, *, step: int, restarts: int, ckpt_path: str | None) -> None:
        """Writes `failure.json`. `ckpt_path` is the checkpoint from which the run can continue."""
        fields: dict[str, Any] = {
            "reason": str(failure),
            "first": {
                "role": failure.role,
                "index": failure.index,
                "host": failure.host,
                "pid": failure.pid,
                "reason": failure.reason,
                "exit_status": failure.exit_status,
                "last_lines": failure.last_lines,
            },
            "others": [one.texts for one in failure.others],
            "step": max(step, failure.step or 0),
            "ckpt_path": ckpt_path,
            "restarts": restarts,
            "resume_command": self.command(ckpt_path),
            "cwd": os.getcwd(),
            "logs": str(self.run_dir / "logs"),
        }
        path = self.run_dir / FAILURE
        try:
            write_whole(path, json.dumps(fields, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            # Even without this file, the terminal shows the cause of the failure.
            print(f"parallax_runner: {path} cannot be written: {error.strerror}", file=sys.stderr)


def continued(config: RunConfig, prefix: str) -> RunConfig:
    """Returns the configuration that continues from a checkpoint. Unless the run has begun from this checkpoint, the
    run itself has written it, so it contains the position in the run's data."""
    if prefix == config.ckpt.resume:
        return config
    return dataclasses.replace(config, ckpt=dataclasses.replace(config.ckpt, resume=prefix, position="keep"))


def forget_failure(run_dir: Path) -> None:
    """Removes the `failure.json` of an earlier run in this folder."""
    (run_dir / FAILURE).unlink(missing_ok=True)


def epoch_of(config: RunConfig) -> Mapping[str, Any] | None:
    """Returns the state of the epoch in the checkpoint from which a run with this configuration begins, or None if
    there is no such state. `ckpt.resume` must be resolved."""
    resume = config.ckpt.resume
    return None if resume == "never" else read_sidecar(Path(resume)).epoch


def step_of(config: RunConfig) -> int:
    """Returns the number of steps that have been completed when a run with this configuration begins. `ckpt.resume`
    must be resolved."""
    resume = config.ckpt.resume
    return 0 if resume == "never" else read_sidecar(Path(resume)).step
