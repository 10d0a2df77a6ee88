"""The last thing that the chief does: leaves its run's model for others, and never fails the run for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from parallax_runner.checkpoints.best import best_checkpoint, read_best
from parallax_runner.checkpoints.files import damage, step_of
from parallax_runner.data.dataset import Dataset
from parallax_runner.export.keras_file import write_keras_file
from parallax_runner.export.saved_model import export_saved_model
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.process.stage_times import stage

log = logging.getLogger(__name__)

# What an export leaves in the run's folder.
SAVED_MODEL = "saved_model"
KERAS_FILE = "model.keras"
WHAT = {"saved_model": "SavedModel", "keras_model": "model.keras"}
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
    run_dir: Path,
) -> dict[str, str | None]:
    """Writes the SavedModel of the best checkpoint, where `log_checkpoints` is `best`, else of `last`, to `run_dir`;
    then, of a Keras model, the same checkpoint as `model.keras`.

    `single` and `rebuild` are `export_saved_model`'s. Returns what the summary says: in `saved_model` the folder, or
    None and in `saved_model_error` the reason; of a Keras model likewise `keras_model` and `keras_model_error`.
    """
    try:
        prefix = (_best(last, single) if log_checkpoints == "best" else None) or last
    except Exception as error:  # the file that names the best one may be damaged in any way
        log.warning("the best checkpoint is not known, the last one is exported: %s", error, exc_info=True)
        prefix = last

    def saved_model() -> Path:
        return export_saved_model(single, rebuild, dataset, prefix=prefix, folder=run_dir / SAVED_MODEL)

    def keras_model() -> Path:
        return write_keras_file(single.keras_model, prefix=prefix, path=run_dir / KERAS_FILE)

    told = _tried("saved_model", saved_model)
    return told if single.keras_model is None else told | _tried("keras_model", keras_model)


def _tried(name: str, export: Callable[[], Path]) -> dict[str, str | None]:
    try:
        return {name: str(export()), f"{name}_error": None}
    except Exception as error:  # Whatever keeps a model from being exported, it has been trained.
        reason = f"{type(error).__name__}: {error}"
        log.warning("no %s: %s", WHAT[name], reason, exc_info=True)
        return {name: None, f"{name}_error": reason}


def _best(last: Path, single: SingleDeviceGraph) -> Path | None:
    deadline = time.monotonic() + BEST_PATIENCE_SECS
    while single.validation_loss is not None and time.monotonic() < deadline:
        best = read_best(last.parent)
        if best is not None and best.validated_step >= step_of(last):
            break
        time.sleep(0.05)
    found = best_checkpoint(last.parent)
    return found if found is not None and damage(found) is None else None
