"""Chooses what decides between two segments of a run's training."""

from __future__ import annotations

from parallax_runner.driver import partition_search
from parallax_runner.driver.patience import epochs_of
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.segments import MakeSegments, Segments
from parallax_runner.track.tracker import Tracker


def segments_of(prepared: PreparedRun, tracker: Tracker) -> MakeSegments:
    """Returns the function that makes the segments of a run: epochs, the trials of a search, or a single segment."""
    epochs = prepared.make_epochs or epochs_of(prepared.config)
    if epochs is not None:
        return epochs
    if partition_search.is_due(prepared.config, prepared.planned.plan):
        return lambda *_: partition_search.PartitionSearch(prepared, tracker)
    return lambda *_: Segments()
