"""The state of a run in the driver. The summary is created from this state, no matter how the run ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.worker_numbers import is_elastic
from parallax_runner.driver.recovery import Restarts
from parallax_runner.driver.run_summary import RunSummary
from parallax_runner.driver.segments import Segments
from parallax_runner.track.run_record import write_summary


@dataclass
class RunState:
    """The state of one run. `summary` contains the results of the stages. `restarts` and `segments` are kept
    separately."""

    summary: RunSummary
    restarts: Restarts
    segments: Segments = field(default_factory=Segments)
    sizes: list[Mapping[str, Any]] = field(default_factory=list)  # the size of the cluster from each step on
    job_script: Path | None = None  # set if a batch system will start the run

    @classmethod
    def begun(cls, config: RunConfig) -> RunState:
        """Returns the state of a run that is about to begin."""
        trains = action_of(config).trains
        most = config.train.max_restarts if trains else 0
        return cls(RunSummary.begun(config), Restarts(most, trains=trains, is_elastic=is_elastic(config)))

    def finish(self, run_dir: Path) -> None:
        """Writes the summary of a run that has finished without processes. Raises OSError if it cannot be written."""
        self.summary = dataclasses.replace(self.summary, status="finished")
        write_summary(run_dir, self.summary.flat())

    def known(self) -> RunSummary:
        """Returns the summary so far."""
        sizes = tuple(self.sizes) or None
        fields = self.segments.summary_fields()
        return dataclasses.replace(self.summary, restarts=self.restarts.all, sizes=sizes, **fields)
