"""Exports a trained model: at the end of a run, after its processes have ended, or from an old checkpoint."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_runner.checkpoints.origin import source_of
from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.identity import Contents
from parallax_runner.driver.planned_run import PlannedRun
from parallax_runner.driver.prepared_run import PreparedRun
from parallax_runner.driver.recovery import step_of
from parallax_runner.driver.request import Request
from parallax_runner.driver.run_summary import ExportSummary, KerasSummary
from parallax_runner.driver.starting_point import with_start
from parallax_runner.errors import ExportError
from parallax_runner.graph.build import Source
from parallax_runner.shipment.shipment_folder import removed_at_end


def with_export(
    prepared: PreparedRun, status: str, words: Mapping[int, dict[str, Any]]
) -> Mapping[int, Mapping[str, Any]]:
    """Exports the model of a finished run, and returns the ranks' last messages (`words`, by rank) with the result
    added to the chief's. Does nothing if the run sends no checkpoints to its tracker, or has none."""
    config, planned, chief = prepared.config, prepared.planned, words.get(0, {})
    is_trained = status == "finished" and action_of(config).trains and chief.get("ckpt_path") is not None
    if not is_trained or not frozen.exports_model(config):
        return words
    which = config.tracking.log_checkpoints
    found = _exported(planned, config, prepared.source, which, Path(chief["ckpt_path"]), prepared.run_dir)
    return {**words, 0: {**chief, **found}}


def export_checkpoint(request: Request, planned: PlannedRun) -> None:
    """Exports the checkpoint that `ckpt.resume` names, and records the files in the summary.

    Raises CheckpointError if the checkpoint does not fit the model, and ExportError if a file cannot be written.
    """
    from parallax_runner.export.end_of_run import WHAT

    with removed_at_end(request.run_dir):
        config = with_start(planned.config, planned.single, planned.dataset, Contents(), request.run_dir)
        steps, checkpoint = step_of(config), source_of(Path(config.ckpt.resume))
        found = _exported(planned, config, request.source, "last", Path(config.ckpt.resume), request.run_dir)
    summary = dataclasses.replace(
        request.state.summary,
        steps=steps,
        first_step=steps,
        ckpt_path=str(checkpoint),
        export=ExportSummary(found["saved_model"], found["saved_model_error"]),
    )
    if "keras_model" in found:
        summary = dataclasses.replace(summary, keras=KerasSummary(found["keras_model"], found["keras_model_error"]))
    request.state.summary = summary
    for name, what in WHAT.items():
        reason = found.get(f"{name}_error")
        if reason is not None:
            raise ExportError(f"{what} of checkpoint {checkpoint} was not written: {reason}")


def _exported(
    planned: PlannedRun, config: RunConfig, source: Source, which: str, last: Path, run_dir: Path
) -> dict[str, str | None]:
    from parallax_runner.export.end_of_run import export_at_end
    from parallax_runner.shipment.stored_values import with_constants

    return export_at_end(
        with_constants(planned.shipment.stored),
        functools.partial(source.build_serving_graph, config, planned.dataset),
        planned.dataset,
        log_checkpoints=which,
        last=last,
        run_dir=run_dir,
    )
