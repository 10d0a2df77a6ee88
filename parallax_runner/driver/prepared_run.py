"""Everything that the driver has decided about a run before it launches the processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.epochs import MakeEpochs
from parallax_runner.driver.recovery import Recovery
from parallax_runner.graph.build import Source

if TYPE_CHECKING:
    from parallax_runner.driver.planned_run import PlannedRun


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to be launched.

    `planned` is the run with its plan, as it was before it was decided where the run begins. `start` is the checkpoint
    from which it begins. `source` can build the model again, for an export. `make_epochs` makes the object that is
    called between epochs, or is None. `before` is the summary of an earlier run in the folder.
    """

    planned: PlannedRun
    start: Recovery
    source: Source
    make_epochs: MakeEpochs | None
    before: Mapping[str, Any]

    @property
    def config(self) -> RunConfig:
        """The configuration of the run. It is the configuration of `planned` with the checkpoint from which the run
        begins."""
        return self.start.config

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return self.start.run_dir

    @property
    def keeps_training(self) -> bool:
        """Whether the trained steps are part of the run's result. With `action=search`, they only serve to be timed."""
        return not action_of(self.config).searches_only
