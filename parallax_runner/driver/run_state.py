"""What the driver knows of a run while it goes on; the summary is made of it, whatever ends the run."""

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
    """`summary` has what stages have found; `restarts` and `search` keep their own account."""

    summary: RunSummary
    restarts: Restarts
    search: PartitionSearch | None = None
    job_script: Path | None = None  # of a run that a batch system is to start

    @classmethod
    def begun(cls, config: RunConfig) -> RunState:
        """Of a run that is about to begin."""
        return cls(RunSummary.begun(config), Restarts(config.train.max_restarts if config.action == "train" else 0))

    def known(self) -> RunSummary:
        """The summary as far as it is known."""
        search = None if self.search is None else self.search.summary()
        return dataclasses.replace(self.summary, restarts=self.restarts.done, search=search)
