"""Decides where a planned run begins, and leaves everything in the run's folder that its processes need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parallax_runner.collectives.chosen import backend
from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, save_learned
from parallax_runner.driver import report
from parallax_runner.driver.data_position import identity_in
from parallax_runner.driver.hand_over import cache_dir_of, own_folder_in
from parallax_runner.driver.planned_run import PlannedRun
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.recovery import Recovery
from parallax_runner.driver.request import Request
from parallax_runner.driver.restore_memory import whole_tables_note
from parallax_runner.driver.starting_point import leave_for_workers, with_start
from parallax_runner.driver.warm_start import leave_warm_start
from parallax_runner.routes.registry import uses_collectives
from parallax_runner.shipment.shipment_folder import removed_at_end


@contextmanager
def started(request: Request, planned: PlannedRun) -> Iterator[PreparedRun]:
    """Yields the run, ready to be launched. Removes the files for its processes after the block.

    Raises CollectiveError if what exchanges tensors cannot be compiled, CheckpointError if a checkpoint does not fit
    the model or the data, and StorageError or OSError if a file cannot be written.
    """
    config, run_dir, shipment = planned.config, request.run_dir, planned.shipment
    # A plan does not need the notes about the data, which can mean reading all examples to count them.
    report.tell_notes(getattr(planned.dataset, "notes", ()))
    identity = identity_in(config, planned.dataset)
    settled = with_start(config, planned.single, planned.dataset, identity, run_dir)
    report.tell_notes(_restore_notes(settled, planned))
    start = Recovery.of(settled, config.ckpt.resume)
    if uses_collectives(planned.plan):
        report.tell_notes(filter(None, [backend().preparation()]))
        backend().prepare()
    with removed_at_end(run_dir), own_folder_in(cache_dir_of(config, shipment)) as data_folder:
        leave_for_workers(config, shipment, identity, run_dir, data_folder)
        leave_warm_start(planned.warm_start, run_dir)
        _leave_learned(config, planned.dataset, run_dir)
        frozen.freeze(start.config, run_dir)
        yield PreparedRun(
            planned=planned,
            start=start,
            source=request.source,
            make_epochs=request.make_epochs,
            before=request.before,
        )


def _restore_notes(config: RunConfig, planned: PlannedRun) -> list[str]:
    if config.ckpt.resume == "never":
        return []
    note = whole_tables_note(planned.plan, planned.single, Path(config.ckpt.resume))
    return [] if note is None else [note]


def _leave_learned(config: RunConfig, dataset: Dataset, run_dir: Path) -> None:
    """Writes what the data has learned to the run's folder and beside its checkpoints, whose rows it explains."""
    save_learned(dataset, run_dir)
    if config.ckpt.enabled and action_of(config).trains:
        save_learned(dataset, Path(config.ckpt.folder))
