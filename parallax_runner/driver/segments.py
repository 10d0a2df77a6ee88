"""Between two segments of the training, all ranks wait until the driver has decided how they continue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parallax_runner.config.schema import RunConfig
from parallax_runner.launch.control import wire
from parallax_runner.plan.plan import Plan
from parallax_runner.track.run_record import RunRecord

# A function that handles the reports of one kind. Its arguments are the rank and the fields of the report.
Handler = Callable[..., Mapping[str, Any] | wire.Answer | None]


class Segments:
    """Decides what happens between two segments. This class itself decides nothing: the training is one segment.

    `is_stopping` returns whether a signal has asked the run to stop.
    """

    is_stopping: Callable[[], bool]

    def begin_attempt(self, config: RunConfig, plan: Plan) -> tuple[RunConfig, Plan]:
        """Returns the configuration and the plan with which the processes start, or start again."""
        return config, plan

    def handlers(self) -> Mapping[str, Handler]:
        """Returns the functions that handle the ranks' reports about segments, by the kind of report."""
        return {}

    def answer(self) -> wire.Answer | None:
        """Returns the answer to an earlier question of the chief, or None if no question can be answered."""
        return None

    def restart(self, step: int, fields: Mapping[str, Any] | None) -> None:
        """Called when all ranks restart from the checkpoint of `step`, whose sidecar has the epoch's state `fields`."""

    def resize(self, workers: int) -> None:
        """Called when the run continues with another number of workers."""

    def finish(self, step: int) -> None:
        """Called when the training has finished after `step` steps."""

    def close(self) -> None:
        """Called when the training has ended, no matter how."""

    def last_plan(self, plan: Plan) -> Plan:
        """Returns the plan that is in use now. `plan` is the plan with which the run began."""
        return plan

    def summary_fields(self) -> Mapping[str, Any]:
        """Returns the fields of RunSummary that this object knows."""
        return {}


# A function that takes the record of a run and the checkpoint from which the run resumes, and creates its segments.
MakeSegments = Callable[[RunRecord, Path | None], Segments]
