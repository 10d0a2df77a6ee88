"""Runs a short row trial if the cost model needs its result, and caches the result for later runs."""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from parallax_runner.config import frozen
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.file_state import drawn_from, state_of
from parallax_runner.driver.failure_origins import with_origins
from parallax_runner.driver.hand_over import cache_dir_of, own_folder_in
from parallax_runner.driver.jobs.child_job import require_finished, run_child_job
from parallax_runner.errors import StorageError
from parallax_runner.files.cache import cache_key, cache_root
from parallax_runner.files.plain import remove
from parallax_runner.launch.interrupts import Interrupts
from parallax_runner.plan import plan
from parallax_runner.planning.cost import measured
from parallax_runner.planning.cost.measured import Measured
from parallax_runner.shipment.shipment_folder import removed_at_end

if TYPE_CHECKING:
    from parallax_runner.shipment.shipment import Shipment

log = logging.getLogger(__name__)

FOLDER = "measure"
MODULE = "parallax_runner.worker.row_trial"


def known(config: RunConfig, fingerprint: str) -> Measured | None:
    """Returns the result of an earlier trial of the same graph and data on the same machine, with the same number of
    ranks. Returns None if there is no such result. Also returns None for a script, because the configuration does not
    identify the script's data."""
    if frozen.is_of_script(config):
        return None
    try:
        return measured.load(_kept(config, fingerprint))
    except (OSError, ValueError, KeyError, TypeError):  # there is no file, or it is damaged
        return None


def measure(
    config: RunConfig,
    shipment: Shipment,
    alone: plan.Plan,
    run_dir: Path,
    interrupts: Interrupts | None = None,
) -> Measured:
    """Returns the cached result. If there is none, runs a trial, which uses one process and takes a few seconds.
    `alone` is the plan of the graph with comm=local.

    Writes `run_dir/measured.json`. Raises LaunchError if the trial fails, and Interrupted if the user interrupts it.
    """
    found = known(config, alone.fingerprint)
    if found is None:
        print("measure: running a short trial of the graph and its data on one device", file=sys.stderr, flush=True)
        found = _trial(config, shipment, alone, run_dir / FOLDER, interrupts)
        if not frozen.is_of_script(config):
            _keep(found, _kept(config, alone.fingerprint))
    measured.save(found, run_dir / measured.FILE_NAME)
    return found


def _keep(found: Measured, path: Path) -> None:
    try:
        measured.save(found, path)
    except OSError as error:  # the next run measures again
        log.warning("cannot cache the measurement: %s", error)


def _trial(
    config: RunConfig, shipment: Shipment, alone: plan.Plan, folder: Path, interrupts: Interrupts | None
) -> Measured:
    from parallax_runner.graph import fingerprint, generators

    remove(folder)
    folder.mkdir(parents=True)
    fingerprint.Outline.of(shipment.single.meta_graph.graph_def).save(folder / fingerprint.FILE_NAME)
    here = dataclasses.replace(
        config,
        run_dir=str(folder),
        ckpt=dataclasses.replace(config.ckpt, enabled=False),
        cluster=dataclasses.replace(config.cluster, resource_info=None),  # one host is enough
    )
    if frozen.is_of_script(config):
        generators.begin.save(folder / generators.FILE_NAME)
        here = dataclasses.replace(here, model={**config.model, "first_process": str(folder)})
    with removed_at_end(folder), own_folder_in(cache_dir_of(config, shipment)) as data_folder:
        shipment.of_first_steps(measured.MOST_STEPS).write(folder, data_folder)
        result = with_origins(run_child_job(here, alone, module=MODULE, interrupts=interrupts), config)
    require_finished(result, "measure", folder)
    try:
        return measured.load(folder / measured.FILE_NAME)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{folder / measured.FILE_NAME}: cannot be read back: {error}") from error


def _kept(config: RunConfig, fingerprint: str) -> Path:
    """Returns the path of a cached measurement. The name depends on everything that affects the measurement except the
    seed. A different seed changes which rows are drawn, but has little effect on their number."""
    data = frozen.plain(config.data)
    depends_on = [
        measured.FORMAT,
        fingerprint,
        drawn_from(data),
        state_of(data),
        min(config.cluster.workers, measured.MOST_RANKS),
        config.cluster.threads_per_worker,
        [platform.node(), os.cpu_count()],
    ]
    return cache_root() / "measured" / f"{cache_key(depends_on)}.json"
