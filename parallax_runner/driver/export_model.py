"""Exports a trained model at the end of a run, after its processes have ended."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_runner.config import frozen
from parallax_runner.config.actions import action_of
from parallax_runner.driver.prepared_run import PreparedRun


def with_export(
    prepared: PreparedRun, status: str, words: Mapping[int, dict[str, Any]]
) -> Mapping[int, Mapping[str, Any]]:
    """Exports the model of a finished run, and returns the ranks' last messages (`words`, by rank) with the result
    added to the chief's. Does nothing if the run sends no checkpoints to its tracker, or has none."""
    config, planned, chief = prepared.config, prepared.planned, words.get(0, {})
    is_trained = status == "finished" and action_of(config).trains and chief.get("ckpt_path") is not None
    which = config.tracking.log_checkpoints
    is_wanted = config.tracking.enabled and which != "none" and config.model["_target_"] != frozen.SCRIPT
    if not is_trained or not is_wanted:
        return words
    from parallax_runner.export.end_of_run import export_at_end
    from parallax_runner.shipment.stored_values import with_constants

    found = export_at_end(
        with_constants(planned.shipment.stored),
        functools.partial(prepared.source.build_serving_graph, config, planned.dataset),
        planned.dataset,
        log_checkpoints=which,
        last=Path(chief["ckpt_path"]),
        run_dir=prepared.run_dir,
    )
    return {**words, 0: {**chief, **found}}
