"""A worker's source of the graph and the data: what the driver has written or, for a part that could not travel, the
user's functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, with_pass_steps, with_whole_batches
from parallax_runner.errors import LaunchError
from parallax_runner.files.shared import check_own_folder
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.process.stage_times import stage
from parallax_runner.shipment.shipment_folder import Contents, folder_of


class Maker(Protocol):
    """Makes the parts of a run with the user's functions."""

    def load_dataset(self, config: RunConfig) -> Dataset:
        """Loads the data."""
        ...

    def build_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        """Builds the single-device graph."""
        ...


@dataclass(frozen=True)
class Received:
    """The parts of the run in `run_dir`. `maker` makes what is not in the run's shipment, whose contents are
    `contents`."""

    run_dir: Path
    contents: Contents
    maker: Maker

    @classmethod
    def of(cls, run_dir: Path, maker: Maker) -> Received:
        """Returns the parts of a run.

        Raises LaunchError if another user can have written the shipment, because a graph can read and write files of
        this user. Raises OSError or ValueError if the shipment cannot be read.
        """
        contents = Contents.load(run_dir)
        if contents is None:
            return cls(run_dir, Contents(graph="not written", data="not written", data_folder=""), maker)
        folders = [folder_of(run_dir), *([Path(contents.data_folder)] if contents.data is None else [])]
        for folder in folders:
            try:
                check_own_folder(folder)
            except PermissionError as error:
                raise LaunchError(f"{folder}: {error.strerror}, so no graph is loaded from it") from error
        return cls(run_dir, contents, maker)

    def load_dataset(self, config: RunConfig) -> Dataset:
        """Returns the data."""
        if self.contents.data is not None:
            return self._as_the_driver_has_it(self.maker.load_dataset(config))
        from parallax_runner.shipment.data_files import load_data

        with stage("data"):
            return load_data(Path(self.contents.data_folder))

    def _as_the_driver_has_it(self, made: Dataset) -> Dataset:
        """Returns data that this worker has made, with the driver's numbers and without batches that it omits."""
        steps = self.contents.pass_steps
        if steps is not None:
            made = with_pass_steps(made, steps, self.contents.pass_examples)
        return with_whole_batches(made) if self.contents.whole_only else made

    def build_graph(self, config: RunConfig, dataset: Dataset) -> SingleDeviceGraph:
        """Returns the graph."""
        if self.contents.graph is not None:
            return self.maker.build_graph(config, dataset)
        from parallax_runner.shipment.graph_file import load_graph

        with stage("load the graph"):
            return load_graph(folder_of(self.run_dir))
