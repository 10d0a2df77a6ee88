"""`action=export`: writes the SavedModel and, for a Keras model, `model.keras` from any checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from parallax_runner.actions.uses_checkpoint import UsesCheckpoint

if TYPE_CHECKING:
    from pathlib import Path

    from parallax_runner.driver.request import Request
    from parallax_runner.driver.run_summary import RunSummary


class Export(UsesCheckpoint):
    """Plans the run to know the model, and writes the files into the folder of this run. Starts no processes."""

    validates: ClassVar[bool] = False
    purpose: ClassVar[str] = "export"

    def run(self, request: Request) -> None:
        """Writes the files. Raises ExportError if the SavedModel cannot be written."""
        from parallax_runner.driver import report
        from parallax_runner.driver.export_model import export_checkpoint
        from parallax_runner.driver.planned_run import planned_run

        export_checkpoint(request, planned_run(request))
        request.state.finish(request.run_dir)
        report.tell_end(request.state.summary, None, request.run_dir)

    def told_at_end(self, summary: RunSummary, run_dir: Path) -> str:
        """Returns the paths of the files."""
        keras_file = None if summary.keras is None else summary.keras.keras_model
        saved_model = None if summary.export is None else summary.export.saved_model
        written = [path for path in (saved_model, keras_file) if path is not None]
        return f"exported: {', '.join(written)}"
