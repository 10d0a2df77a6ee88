"""The interface of an action. Imports no TensorFlow, because the configuration asks an action what it needs.

`action` in the configuration names the class (`config/actions.py` looks it up), so a package outside this repository
can provide an action (see `docs/extending.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from parallax_runner.errors import ConfigError, Setting

if TYPE_CHECKING:
    from pathlib import Path

    from parallax_runner.config.command_without_job import CommandWithoutJob
    from parallax_runner.config.objective import Objective
    from parallax_runner.config.origins import Origins
    from parallax_runner.config.schema import RunConfig
    from parallax_runner.driver.request import Request
    from parallax_runner.driver.run_summary import RunSummary
    from parallax_runner.worker.rank_run import RankRun


class Action:
    """What a command does with a configuration. A subclass overrides what differs, and implements `run`.

    Class attributes:
        trains: it makes trained weights. It then writes checkpoints, restarts after a failure, exports the model, and
            has an objective for sweeps.
        runs_steps: it runs the steps of the configuration in worker processes. Such an action is recorded by the
            tracker, and is submitted to Slurm.
        can_be_profiled: its steps are those of a training, which a profile can describe.
        validates: its steps are interrupted by validations.
        reads_rows: it needs the rows of the data. Otherwise, it only needs to know what they look like.
        names_part: its validations read `read.part`, after which their results are named.
        counts_all: its validation fails if it cannot count each example. Otherwise, a message tells which are left out.
        goes_on_training: its steps follow those of the checkpoint from which it starts, on the same data.
        repeats_steps: it runs steps again and compares the results, which must then not depend on timing.
        searches_only: it ends when the partition search has chosen a number.
        explains_plan: it shows how the plan came about.
        compares_modes: it is about all modes of communication, not only about the chosen one.
        runs_a_job: it runs a job in a run directory. False for an action that a command runs without Hydra.
        in_fit: `fit` supports it.
        in_script: a script that calls `parallel_run` supports it.
        own_keys: the groups of keys that only this action uses.
        purpose: what it does, as in «action=plan does not train».
    """

    trains: ClassVar[bool] = False
    runs_steps: ClassVar[bool] = False
    can_be_profiled: ClassVar[bool] = False
    validates: ClassVar[bool] = True
    reads_rows: ClassVar[bool] = True
    names_part: ClassVar[bool] = False
    counts_all: ClassVar[bool] = False
    goes_on_training: ClassVar[bool] = True
    repeats_steps: ClassVar[bool] = False
    searches_only: ClassVar[bool] = False
    explains_plan: ClassVar[bool] = False
    compares_modes: ClassVar[bool] = False
    runs_a_job: ClassVar[bool] = True
    in_fit: ClassVar[bool] = False
    in_script: ClassVar[bool] = False
    own_keys: ClassVar[tuple[str, ...]] = ()
    purpose: ClassVar[str] = "do this"

    def check(self, config: RunConfig, origins: Origins) -> None:
        """Raises ConfigError if a setting contradicts this action."""

    def begin(self, config: RunConfig) -> None:
        """Called in the driver before anything else. Raises ConfigError if the action cannot run as a job."""

    def check_start(self, config: RunConfig, done_steps: int) -> None:
        """Raises ConfigError if the action cannot begin after `done_steps` steps, at which the run's checkpoint is."""

    def run(self, request: Request) -> Objective | None:
        """Runs one job in the driver. Returns its objective, or None if there is none.

        Raises ParallaxError for an error in the configuration, data, graph or plan, and RunEnded if the run failed or
        was stopped.
        """
        raise self._lacks("run", request.config.action)

    def run_command(self, command: CommandWithoutJob) -> None:
        """Runs the command of an action that runs no job."""
        raise self._lacks("run_command", type(self).__name__)

    def told_at_end(self, summary: RunSummary, run_dir: Path) -> str:
        """Returns what the terminal shows when the action has finished."""
        return f"finished: {run_dir}"

    def work(self, rank: RankRun) -> dict[str, Any]:
        """Runs the steps in one rank. Returns this rank's fields for the summary."""
        return rank.train()

    def _lacks(self, method: str, name: str) -> ConfigError:
        """Returns the error for a class that does not define a method that it needs."""
        reason = f"{type(self).__name__} does not define the method «{method}»"
        return ConfigError(reason).about(Setting.of("action", name), remedy="define it (docs/extending.md)")
