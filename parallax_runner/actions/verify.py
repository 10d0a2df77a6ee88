"""`action=verify`: proves that the run trains as one device does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from parallax_runner.actions.runs_steps import RunsSteps
from parallax_runner.errors import ConfigError, Setting
from parallax_runner.track.run_record import SUMMARY

if TYPE_CHECKING:
    from pathlib import Path

    from parallax_runner.config.schema import RunConfig
    from parallax_runner.driver.prepared_run import PreparedRun
    from parallax_runner.driver.run_state import RunState
    from parallax_runner.driver.run_summary import RunSummary
    from parallax_runner.worker.rank_run import RankRun

NEW_STEPS = 10  # the number of steps that a message suggests to verify


class Verify(RunsSteps):
    """Compares the captured graph with the model's own step, and then the distributed steps with the same steps on one
    device."""

    can_be_profiled: ClassVar[bool] = True
    repeats_steps: ClassVar[bool] = True
    in_fit: ClassVar[bool] = True
    purpose: ClassVar[str] = "verify"

    def begin(self, config: RunConfig) -> None:
        """Makes GPUs compute exactly, because the comparison needs it."""
        from parallax_runner.config.cluster_size import visible_gpus
        from parallax_runner.driver.exact_on_gpus import compute_exactly

        if visible_gpus(config.cluster, rank=0):
            compute_exactly()

    def check_start(self, config: RunConfig, done_steps: int) -> None:
        """Raises ConfigError if there are no steps left, because then all variables would be equal."""
        if config.train.steps is None or done_steps < config.train.steps:
            return
        steps = config.train.steps
        raise ConfigError(
            f"{config.ckpt.resume} is at step {done_steps}, so train.steps={steps} leaves no steps to verify"
        ).about(Setting("action", "verify"), remedy=f"set train.steps={done_steps + NEW_STEPS} or ckpt.resume=never")

    def told_at_end(self, summary: RunSummary, run_dir: Path) -> str:
        """Returns how far the result differs from one device, and whether stock TensorFlow differs."""
        verification = summary.verification
        if verification is None:
            return super().told_at_end(summary, run_dir)
        lines = [
            f"verified: after {_repeated(summary)}, every variable matches the result on one device; the largest "
            f"difference is {verification.max_difference:.2g} of the variable's change; {run_dir}"
        ]
        number = len(verification.differ_unmerged)
        if number:  # the plan has a note with the names
            variables = "1 variable" if number == 1 else f"{number} variables"
            lines.append(
                f"stock TensorFlow and Keras differ in {variables} if a batch repeats an id; {run_dir / SUMMARY} lists "
                "the names under differ_unmerged (docs/repeated-ids.md)"
            )
        return "\n".join(lines)

    def before_processes(self, prepared: PreparedRun, state: RunState) -> None:
        """Compares the captured graph with the model's own step on one device."""
        from parallax_runner.driver.verify_capture import verify_capture

        verify_capture(prepared, state)

    def work(self, rank: RankRun) -> dict[str, Any]:
        """Repeats the steps of the rank on one device, and compares the variables."""
        from parallax_runner.worker.verification import Verification

        return Verification(rank).run()


def _repeated(summary: RunSummary) -> str:
    """Returns which steps were repeated on one device."""
    from parallax_runner.verify.compare import PART_STEPS

    first, steps = summary.first_step, summary.steps
    every = f"every {PART_STEPS} of " if steps - first > PART_STEPS else ""
    begin = f" from step {first}" if first else ""
    return f"{every}{steps - first} steps{begin}"
