"""What one rank has when it is ready for its first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parallax_runner.checkpoints.checkpoint_files import Sidecar
from parallax_runner.checkpoints.checkpoint_ops import CheckpointOps
from parallax_runner.config.schema import RunConfig
from parallax_runner.graph.single_device_graph import SingleDeviceGraph
from parallax_runner.plan.plan import Plan
from parallax_runner.train.loop import Loop


@dataclass(frozen=True)
class RankRun:
    """A rank with an open session. `start` says at which step and example it begins."""

    loop: Loop
    checkpoints: CheckpointOps
    single: SingleDeviceGraph
    plan: Plan
    config: RunConfig
    start: Sidecar

    def train(self) -> dict[str, Any]:
        """Runs the steps up to `train.steps`, and closes the session. Returns this rank's fields for the summary."""
        steps, start = self.config.train.total_steps, self.start
        outcome = self.loop.run(first_step=start.step, steps=steps, first_example=start.examples)
        self.loop.runner.session.close()
        return outcome

    def validate(self) -> dict[str, Any]:
        """Validates the weights with which the rank starts, and closes the session. Returns the rank's fields."""
        steps, start = self.start.step, self.start
        outcome = self.loop.run(first_step=steps, steps=steps, first_example=start.examples)
        self.loop.runner.session.close()
        return outcome
