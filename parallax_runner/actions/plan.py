"""`action=plan`: shows the plan of a run, with reasons and advice, and starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from parallax_runner.actions.action import Action

if TYPE_CHECKING:
    from parallax_runner.driver.request import Request


class Plan(Action):
    """Makes the plan, shows it and writes `plan.json`. Reads no more data than the plan needs."""

    explains_plan: ClassVar[bool] = True
    reads_rows: ClassVar[bool] = False
    in_fit: ClassVar[bool] = True
    in_script: ClassVar[bool] = True
    purpose: ClassVar[str] = "plan"

    def run(self, request: Request) -> None:
        """Shows the plan."""
        from parallax_runner.driver import report
        from parallax_runner.driver.planned_run import planned_run, show_plan

        planned = planned_run(request)
        show_plan(request, planned)
        report.tell_notes(getattr(planned.dataset, "notes", ()))
        request.state.finish(request.run_dir)
