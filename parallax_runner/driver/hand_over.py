"""Hands the captured graph and the data to the workers, or says why each worker must make them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.config import frozen
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset
from parallax_runner.driver import report
from parallax_runner.errors import LaunchError
from parallax_runner.launch.own_folder import OwnFolder, remove_left_over
from parallax_runner.process.script_file import why_not_again

if TYPE_CHECKING:
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph
    from parallax_runner.shipment.shipment import Shipment

SCRIPT_RUNS = "a script that calls parallel_run builds its graph and reads its data in each worker"


def shipment_of(config: RunConfig, single: SingleDeviceGraph, dataset: Dataset) -> Shipment:
    """Returns what travels to the workers. Tells the user about a part that each worker must make again.

    Raises LaunchError if the workers need a script and there is none.
    """
    from parallax_runner.shipment.data_files import OWN_OBJECT
    from parallax_runner.shipment.shipment import Shipment
    from parallax_runner.shipment.stored_values import StoredValues

    if config.model["_target_"] == frozen.SCRIPT:
        return Shipment(StoredValues(single, {}), dataset, SCRIPT_RUNS, SCRIPT_RUNS)
    shipment = Shipment.of(single, dataset)
    if frozen.is_fit(config):
        _tell_or_refuse(config, [shipment.graph_stays, shipment.data_stays])
        return shipment
    if shipment.graph_stays is not None:
        report.tell_notes([f"{shipment.graph_stays}, so each worker builds the model again"])
    if shipment.data_stays not in (None, OWN_OBJECT):
        report.tell_notes([f"{shipment.data_stays}, so each worker makes the data again"])
    return shipment


def _tell_or_refuse(config: RunConfig, reasons: list[str | None]) -> None:
    found = [reason for reason in reasons if reason is not None]
    if not found:
        return
    told = " and ".join(found)
    if config.model["path"] is None:
        raise LaunchError(
            f"fit: {told}, so each worker must run the script up to fit, but {why_not_again()}; put the code into a "
            "script, call fit in its main thread, and start it as in `python train.py`"
        )
    report.tell_notes([f"{told}, so each worker runs the script again up to fit"])


def cache_dir_of(config: RunConfig, shipment: Shipment) -> Path | None:
    """Returns the folder on another disk to which `data.cache_dir` sends the data of `fit`, or None."""
    if shipment.data_stays is not None or not frozen.is_fit(config):
        return None
    cache_dir = config.data.get("cache_dir")
    return None if cache_dir is None else Path(cache_dir).expanduser()


@contextmanager
def own_folder_in(cache_dir: Path | None) -> Iterator[Path | None]:
    """Yields a new folder in `cache_dir`, and removes it after the `with` block. Also removes the folders of drivers
    that were killed. Yields None if `cache_dir` is None. Raises OSError if the folder cannot be made."""
    if cache_dir is None:
        yield None
        return
    cache_dir.mkdir(parents=True, exist_ok=True)
    remove_left_over(cache_dir)
    folder = OwnFolder.make(cache_dir)
    try:
        yield folder.path
    finally:
        folder.remove()
