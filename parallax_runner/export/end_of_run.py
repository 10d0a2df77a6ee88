"""Exports the model as the driver's last action. A failed export never fails the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from parallax_runner.checkpoints.best import best_checkpoint
from parallax_runner.checkpoints.checkpoint_files import damage
from parallax_runner.data.dataset import Dataset
from parallax_runner.export.keras_file import write_keras_file
from parallax_runner.export.saved_model import export_saved_model
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.process.stage_times import stage

log = logging.getLogger(__name__)

# The names of the exports in the run's folder.
SAVED_MODEL = "saved_model"
KERAS_FILE = "model.keras"
WHAT = {"saved_model": "SavedModel", "keras_model": "model.keras"}


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
    """Writes a SavedModel to `run_dir`, and for a Keras model also `model.keras`, from the same checkpoint.

    The checkpoint is the best checkpoint if `log_checkpoints` is `best`, otherwise `last`. `single` and `rebuild` are
    as in `export_saved_model`. Returns fields for the summary: `saved_model` is the folder, or None with the reason in
    `saved_model_error`. For a Keras model, `keras_model` and `keras_model_error` are set in the same way.
    """
    try:
        prefix = (_best(last) if log_checkpoints == "best" else None) or last
    except Exception as error:  # the file that names the best checkpoint may be damaged in any way
        log.warning("the best checkpoint is unknown, so the last checkpoint is exported: %s", error, exc_info=True)
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
    except Exception as error:  # an export error must not fail the run: the model is trained
        reason = f"{type(error).__name__}: {error}"
        log.warning("%s was not written: %s", WHAT[name], reason, exc_info=True)
        return {name: None, f"{name}_error": reason}


def _best(last: Path) -> Path | None:
    found = best_checkpoint(last.parent)
    return found if found is not None and damage(found) is None else None
