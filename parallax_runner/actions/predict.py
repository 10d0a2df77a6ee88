"""`action=predict`: writes the outputs of a checkpoint for each example into files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from parallax_runner.actions.runs_steps import RunsSteps
from parallax_runner.actions.uses_checkpoint import UsesCheckpoint
from parallax_runner.errors import ConfigError, Setting

if TYPE_CHECKING:
    from parallax_runner.driver.prepared_run import PreparedRun
    from parallax_runner.driver.run_state import RunState
    from parallax_runner.driver.run_summary import RunSummary
    from parallax_runner.worker.rank_run import RankRun


class Predict(UsesCheckpoint, RunsSteps):
    """Computes the outputs with any number of workers, and trains no step. A run that was interrupted goes on."""

    validates: ClassVar[bool] = False
    own_keys: ClassVar[tuple[str, ...]] = ("read", "predict")
    purpose: ClassVar[str] = "predict"

    def told_at_end(self, summary: RunSummary, run_dir: Path) -> str:
        """Returns the folder of the files."""
        from parallax_runner.export.predictions import FOLDER

        return f"predicted after {summary.steps} steps: {run_dir / FOLDER}"

    def before_processes(self, prepared: PreparedRun, state: RunState) -> None:
        """Claims the folder. Raises ConfigError if there is nothing to predict, or if the folder is in use."""
        from parallax_runner.checkpoints.origin import source_of
        from parallax_runner.data.dataset import Shared
        from parallax_runner.export.predictions import FOLDER, About

        config, planned = prepared.config, prepared.planned
        part = Setting("read.part", config.read.part)
        if not planned.single.outputs:
            raise ConfigError("the model names no outputs").about(
                Setting("action", config.action), remedy="let the model return a dict with the key «outputs»"
            )
        if isinstance(planned.dataset, Shared):
            raise ConfigError("the data is read in order, so its rows have no positions").about(part)
        if not getattr(planned.dataset, "is_in_order", True):
            raise ConfigError("the data does not tell the order of its training examples").about(part)
        if not planned.dataset.validation_size:
            raise ConfigError("there are no examples to predict").about(part)
        rows = planned.dataset.validation_size
        about = About(str(source_of(Path(config.ckpt.resume))), config.read.part, rows, config.predict.format)
        about.claim(Path(config.run_dir) / FOLDER)

    def work(self, rank: RankRun) -> dict[str, Any]:
        """Writes this rank's files."""
        from parallax_runner.worker.prediction import Prediction

        return Prediction(rank).run()
