"""Decides what travels from the driver to the workers, and writes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parallax_runner.data.dataset import Dataset, first_steps_of
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.process.stage_times import stage
from parallax_runner.shipment.data_files import data_bytes, graphs_of_data, save_data, why_data_stays
from parallax_runner.shipment.graph_file import VALUES, save_graph
from parallax_runner.shipment.op_libraries import libraries_of
from parallax_runner.shipment.shipment_folder import DATA, Contents, check_space, folder_of, make_empty
from parallax_runner.shipment.stored_values import StoredValues, python_op, with_stored_values, write_values


@dataclass(frozen=True)
class Shipment:
    """The captured graph of a run and its data, ready to be written for the workers.

    `stored` is the graph as the workers load it, with the values of its checkpoint. `graph_stays` and `data_stays` are
    the reasons why a part cannot travel, so that each worker makes it again, or None.
    """

    stored: StoredValues
    dataset: Dataset
    graph_stays: str | None
    data_stays: str | None

    @classmethod
    def of(cls, single: SingleDeviceGraph, dataset: Dataset) -> Shipment:
        """Returns the shipment of a captured graph and its data. Writes nothing."""
        calling = python_op(single)
        graph_stays = None if calling is None else f"the model calls Python code (op «{calling}»)"
        stored = with_stored_values(single) if calling is None else StoredValues(single, {})
        return cls(stored, dataset, graph_stays, why_data_stays(dataset))

    def of_first_steps(self, steps: int) -> Shipment:
        """Returns the shipment for a job that reads at most `steps` batches. Data that stays is not changed."""
        if self.data_stays is not None:
            return self
        return replace(self, dataset=first_steps_of(self.dataset, steps))

    @property
    def single(self) -> SingleDeviceGraph:
        """The graph to plan and to distribute."""
        return self.stored.single

    @stage("write the graph for the workers")
    def write(self, run_dir: Path, data_folder: Path | None = None) -> None:
        """Writes the shipment into the folder of a run. The data goes to `data_folder`, an empty folder, if it is not
        None.

        Raises StorageError if a disk has too little free space, and OSError if a file cannot be written.
        """
        folder = make_empty(folder_of(run_dir))
        if self.graph_stays is None:
            remedy = "free some space, or choose another run_dir"
            check_space(folder, self.stored.size_bytes, "a file with the initial values of the model", remedy)
            write_values(self.stored, folder / VALUES)
            save_graph(self.single, folder, libraries=libraries_of(self._graphs()))
        data_folder = make_empty(folder / DATA) if data_folder is None else data_folder
        if self.data_stays is None:
            remedy = "free some space, or set data.cache_dir to a folder on another disk"
            check_space(data_folder, data_bytes(self.dataset), "a file with the training data", remedy)
            save_data(self.dataset, data_folder)
        told = {} if self.data_stays is None else self._told()
        Contents(self.graph_stays, self.data_stays, str(data_folder), **told).save(run_dir)

    def _told(self) -> dict[str, Any]:
        """Returns what workers must know of data that they make again."""
        return {
            "pass_steps": getattr(self.dataset, "pass_steps", None),
            "pass_examples": getattr(self.dataset, "pass_examples", None),
            "whole_only": bool(getattr(self.dataset, "whole_only", False)),
        }

    def _graphs(self) -> Iterator[Any]:
        yield self.single.meta_graph.graph_def
        if self.data_stays is None:
            yield from graphs_of_data(self.dataset)
