"""The state of a run in the driver. The summary is created from this state, no matter how the run ends."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.recovery import Restarts
from parallax_runner.driver.run_summary import RunSummary
from parallax_runner.driver.segments import Segments


@dataclass
class RunState:
    """The state of one run. `summary` contains the results of the stages. `restarts` and `segments` are kept
    separately."""

    summary: RunSummary
    restarts: Restarts
    segments: Segments = field(default_factory=Segments)
    job_script: Path | None = None  # set if a batch system will start the run

    @classmethod
    def begun(cls, config: RunConfig) -> RunState:
        """Returns the state of a run that is about to begin."""
        return cls(RunSummary.begun(config), Restarts(config.train.max_restarts if config.action == "train" else 0))

    def known(self) -> RunSummary:
        """Returns the summary so far."""
        return dataclasses.replace(self.summary, restarts=self.restarts.done, **self.segments.summary_fields())
