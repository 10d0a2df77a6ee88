"""The phases of a run between its plan and its first step. Each phase is shown on one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parallax_runner.plan.plan import Plan

# The slow stages of the chief's start. The keys are the names that the chief uses to report the stages
# (process/stage_times.py).
PHASES = {
    "import TensorFlow": "loading TensorFlow",
    "load the graph": "loading the graph",
    "graph": "building the graph",
    "rewrite": "rewriting the graph for each worker",
    "initialize": "setting initial values",
}
RESTORING = "restoring step {step}"


def starting(plan: Plan) -> str:
    """Returns the line that announces the start of the processes, for example "starting 2 workers and 1 server"."""
    servers = f" and {_counted(plan.servers, 'server')}" if plan.servers else ""
    return f"starting {_counted(plan.workers, 'worker')}{servers}"


def on_stage(show: Callable[[str], None], step: int) -> Callable[..., Mapping[str, Any] | None]:
    """Returns the handler that shows the chief's stages in a run that starts at step `step`."""

    def heard(rank: int, name: str) -> None:
        phase = RESTORING.format(step=step) if name == "initialize" and step else PHASES.get(name)
        if rank == 0 and phase is not None:
            show(phase)

    return heard


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
