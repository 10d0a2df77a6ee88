"""`action=simulate`: predicts the speed of each communication mode on a cluster that need not exist."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

from parallax_runner.actions.action import Action

if TYPE_CHECKING:
    from parallax_runner.driver.request import Request


class Simulate(Action):
    """Measures the model on one device, or reads a measurement, and simulates 1 to `cluster.workers` ranks."""

    compares_modes: ClassVar[bool] = True
    in_script: ClassVar[bool] = True
    own_keys: ClassVar[tuple[str, ...]] = ("simulate",)
    purpose: ClassVar[str] = "simulate"

    def run(self, request: Request) -> None:
        """Simulates, and writes a table and a plot."""
        from parallax_runner.driver.planned_run import measured_alone
        from parallax_runner.driver.simulate import run_simulation

        run_simulation(request.config, request.run_dir, functools.partial(measured_alone, request))
        request.state.finish(request.run_dir)
