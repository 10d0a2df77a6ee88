"""`action=evaluate`: computes the loss and the metrics of a checkpoint on data of one's choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from parallax_runner.actions.runs_steps import RunsSteps
from parallax_runner.actions.uses_checkpoint import UsesCheckpoint
from parallax_runner.errors import ConfigError, Setting

if TYPE_CHECKING:
    from pathlib import Path

    from parallax_runner.driver.prepared_run import PreparedRun
    from parallax_runner.driver.run_state import RunState
    from parallax_runner.driver.run_summary import RunSummary
    from parallax_runner.worker.rank_run import RankRun


class Evaluate(UsesCheckpoint, RunsSteps):
    """Validates the weights of a checkpoint once, with any number of workers, and trains no step."""

    names_part: ClassVar[bool] = True
    counts_all: ClassVar[bool] = True
    own_keys: ClassVar[tuple[str, ...]] = ("read",)
    purpose: ClassVar[str] = "evaluate"

    def told_at_end(self, summary: RunSummary, run_dir: Path) -> str:
        """Returns the loss and the metrics."""
        shown = [f"{name.partition('_')[2]} {value:.6g}" for name, value in summary.validation.items()]
        return f"evaluated after {summary.steps} steps: {', '.join(shown)}; {run_dir}"

    def before_processes(self, prepared: PreparedRun, state: RunState) -> None:
        """Raises ConfigError if there is nothing to evaluate, or nothing to evaluate it on."""
        from parallax_runner.driver import validation

        config, planned = prepared.config, prepared.planned
        if not validation.is_possible(planned.single, planned.dataset):
            reason = validation.why_not(planned.single, planned.dataset)
            raise ConfigError(f"nothing can be evaluated: {reason}").about(
                Setting("action", config.action), Setting("read.part", config.read.part)
            )

    def work(self, rank: RankRun) -> dict[str, Any]:
        """Validates, because no step is left."""
        return rank.validate()
