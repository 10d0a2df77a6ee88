"""The state of a run in the driver. The summary is created from this state, no matter how the run ends."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.partition_search import PartitionSearch
from parallax_runner.driver.recovery import Restarts
from parallax_runner.driver.run_summary import RunSummary


@dataclass
class RunState:
    """The state of one run. `summary` contains the results of the stages. `restarts` and `search` are kept
    separately."""

    summary: RunSummary
    restarts: Restarts
    search: PartitionSearch | None = None
    job_script: Path | None = None  # set if a batch system will start the run

    @classmethod
    def begun(cls, config: RunConfig) -> RunState:
        """Returns the state of a run that is about to begin."""
        return cls(RunSummary.begun(config), Restarts(config.train.max_restarts if config.action == "train" else 0))

    def known(self) -> RunSummary:
        """Returns the summary so far."""
        search = None if self.search is None else self.search.summary()
        return dataclasses.replace(self.summary, restarts=self.restarts.done, search=search)
