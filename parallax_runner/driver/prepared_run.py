"""Everything that the driver has decided about a run before it launches the processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallax_runner.config.actions import action_of
from parallax_runner.config.objective import Goal
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset
from parallax_runner.driver.epochs import MakeEpochs
from parallax_runner.driver.recovery import Recovery
from parallax_runner.graph.build import Source
from parallax_runner.plan.plan import Plan
from parallax_runner.planning.cost.measured import Measured

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph
    from parallax_runner.shipment.shipment import Shipment


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to be launched.

    `start` is the checkpoint from which it begins, with the resolved configuration. `source` can build the model again,
    for an export. `measured` describes the rows that steps touch, or is None. `goal` is the metric by which runs are
    compared. `make_epochs` makes the object that is called between epochs, or is None. `before` is the summary of an
    earlier run in the folder.
    """

    start: Recovery
    plan: Plan
    source: Source
    shipment: Shipment
    measured: Measured | None
    goal: Goal
    make_epochs: MakeEpochs | None
    before: Mapping[str, Any]

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return self.start.config

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return self.start.run_dir

    @property
    def keeps_training(self) -> bool:
        """Whether the trained steps are part of the run's result. With `action=search`, they only serve to be timed."""
        return not action_of(self.config).searches_only

    @property
    def single(self) -> SingleDeviceGraph:
        """The captured graph."""
        return self.shipment.single

    @property
    def dataset(self) -> Dataset:
        """The data of the run."""
        return self.shipment.dataset
