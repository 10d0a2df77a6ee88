"""Records the RunMetadata of profiled steps on one rank."""

from __future__ import annotations

import logging
from collections.abc import Container
from pathlib import Path
from typing import Any

from parallax_runner.config.schema import ProfileConfig
from parallax_runner.files.whole import write_whole
from parallax_runner.profile.profiled_steps import profiled_steps
from parallax_runner.profile.run_metadata_files import run_metadata_path

log = logging.getLogger(__name__)


class StepProfiler:
    """Decides which steps this rank profiles, and writes their RunMetadata."""

    def __init__(self, profile: ProfileConfig, rank: int) -> None:
        self._rank = rank
        self._folder = None if profile.dir is None else Path(profile.dir)
        takes_part = self._folder is not None and profile.worker in (None, rank)
        self._steps: Container[int] = profiled_steps(profile) if takes_part else frozenset()

    def wants(self, step: int) -> bool:
        """Returns whether this step is profiled. Steps are counted from 1."""
        return step in self._steps

    def write(self, step: int, run_metadata: Any) -> None:
        """Writes a step's RunMetadata atomically. A disk error is only logged."""
        assert self._folder is not None
        path = run_metadata_path(self._folder, rank=self._rank, step=step)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, run_metadata.SerializeToString())
        except OSError as error:  # training continues without the profile
            log.warning("step %d was not profiled: %s: %s", step, path, error.strerror)
        else:
            log.info("step %d profiled: %s", step, path)
