"""The last thing that the chief does: leaves its run's model for serving, and never fails the run for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from parallax_runner.checkpoints.best import best_checkpoint, read_best
from parallax_runner.checkpoints.files import damage, step_of
from parallax_runner.data.dataset import Dataset
from parallax_runner.export.saved_model import export_saved_model
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.process.stage_times import stage

log = logging.getLogger(__name__)

# The driver notes the last validation as soon as all ranks have reported it.
BEST_PATIENCE_SECS = 5.0


@stage("export the model")
def export_at_end(
    single: SingleDeviceGraph,
    rebuild: Callable[[], SingleDeviceGraph],
    dataset: Dataset,
    *,
    log_checkpoints: str,
    last: Path,
    folder: Path,
) -> dict[str, str | None]:
    """Writes the SavedModel of the best checkpoint, where `log_checkpoints` is `best`, else of `last`, to `folder`.

    `single` and `rebuild` are `export_saved_model`'s. Returns what the summary says of it: in `saved_model` the folder,
    or None and in `saved_model_error` the reason.
    """
    try:
        prefix = (_best(last, single) if log_checkpoints == "best" else None) or last
        written = export_saved_model(single, rebuild, dataset, prefix=prefix, folder=folder)
    except Exception as error:  # Whatever keeps a model from being served, it has been trained.
        reason = f"{type(error).__name__}: {error}"
        log.warning("no SavedModel: %s", reason, exc_info=True)
        return {"saved_model": None, "saved_model_error": reason}
    return {"saved_model": str(written), "saved_model_error": None}


def _best(last: Path, single: SingleDeviceGraph) -> Path | None:
    deadline = time.monotonic() + BEST_PATIENCE_SECS
    while single.validation_loss is not None and time.monotonic() < deadline:
        best = read_best(last.parent)
        if best is not None and best.validated_step >= step_of(last):
            break
        time.sleep(0.05)
    found = best_checkpoint(last.parent)
    return found if found is not None and damage(found) is None else None
