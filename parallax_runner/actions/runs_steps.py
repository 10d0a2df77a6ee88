"""The base of the actions that run steps in processes: plan the run, start the processes, record the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from parallax_runner.actions.action import Action
from parallax_runner.config.objective import TRAINING_LOSS

if TYPE_CHECKING:
    from pathlib import Path

    from parallax_runner.config.objective import Objective
    from parallax_runner.driver.prepared_run import PreparedRun
    from parallax_runner.driver.request import Request
    from parallax_runner.driver.run_state import RunState
    from parallax_runner.driver.run_summary import RunSummary


class RunsSteps(Action):
    """Plans a run and runs its steps in processes, or submits them to a scheduler."""

    runs_steps: ClassVar[bool] = True

    def run(self, request: Request) -> Objective | None:
        """Runs the steps, and returns the objective of the run. Returns None if the run was submitted, or has no
        objective."""
        from parallax_runner.driver.planned_run import planned_run, show_plan
        from parallax_runner.driver.process_run import run_processes
        from parallax_runner.driver.start_run import started
        from parallax_runner.driver.submission import checked_submission

        submission = checked_submission(request)
        planned = planned_run(request)
        show_plan(request, planned)
        if submission is not None:
            submission.write(request, planned)
            return None
        with started(request, planned) as prepared:
            self.before_processes(prepared, request.state)
            return run_processes(prepared, request)

    def told_at_end(self, summary: RunSummary, run_dir: Path) -> str:
        """Returns the number of steps, the loss, and the metric by which runs are compared."""
        objective = summary.objective
        values = {"loss": summary.loss_last}
        if objective.name != TRAINING_LOSS.name:
            values[objective.name] = objective.value
        shown = "".join(f", {name} {value:.4g}" for name, value in values.items() if value is not None)
        unknown = "" if summary.unknown_loss is None else ", loss unknown"
        return f"finished: {summary.steps} steps{unknown}{shown}; {run_dir}"

    def before_processes(self, prepared: PreparedRun, state: RunState) -> None:
        """Called before the processes are started. Raises RunEnded if they need not start."""
