"""What a run does between its plan and its first step, in a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parallax_runner.plan.plan import Plan

# The stages of the chief's start that take long, by the names under which it reports them (process/stage_times.py).
PHASES = {
    "import TensorFlow": "loading TensorFlow",
    "graph": "building the graph",
    "rewrite": "rewriting the graph for each worker",
    "initialize": "setting initial values",
}
RESTORING = "restoring step {step}"


def starting(plan: Plan) -> str:
    """`starting 2 workers and 1 server`."""
    servers = f" and {_counted(plan.servers, 'server')}" if plan.servers else ""
    return f"starting {_counted(plan.workers, 'worker')}{servers}"


def on_stage(show: Callable[[str], None], step: int) -> Callable[..., Mapping[str, Any] | None]:
    """What hears of a rank's stages, for ranks that start from `step`."""

    def heard(rank: int, name: str) -> None:
        phase = RESTORING.format(step=step) if name == "initialize" and step else PHASES.get(name)
        if rank == 0 and phase is not None:
            show(phase)

    return heard


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
