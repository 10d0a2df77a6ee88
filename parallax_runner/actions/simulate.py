"""`action=simulate`: predicts the speed of each communication mode on a cluster that need not exist."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, ClassVar

from parallax_runner.actions.action import Action
from parallax_runner.config.explain import refusal
from parallax_runner.config.targets import SCRIPT
from parallax_runner.files.access import unreadable

if TYPE_CHECKING:
    from parallax_runner.config.origins import Origins
    from parallax_runner.config.schema import RunConfig
    from parallax_runner.driver.request import Request


class Simulate(Action):
    """Measures the model on one device, or reads a measurement, and simulates 1 to `cluster.workers` ranks."""

    compares_modes: ClassVar[bool] = True
    in_script: ClassVar[bool] = True
    own_keys: ClassVar[tuple[str, ...]] = ("simulate",)
    purpose: ClassVar[str] = "simulate"

    def check(self, config: RunConfig, origins: Origins) -> None:
        """Raises ConfigError if there is no measurement, or one that cannot be read."""
        profile = config.simulate.profile
        if profile is None:
            if config.model["_target_"] == SCRIPT:
                needed = "a script feeds its own data; add simulate.profile=PATH"
                raise refusal("action", origins, needed, value=config.action)
            return
        reason = unreadable(os.path.expanduser(profile))
        if reason is not None:
            raise refusal("simulate.profile", origins, reason, value=profile)

    def run(self, request: Request) -> None:
        """Simulates, and writes a table and a plot."""
        from parallax_runner.driver.planned_run import measured_alone
        from parallax_runner.driver.run_simulation import run_simulation

        run_simulation(request.config, request.run_dir, functools.partial(measured_alone, request))
        request.state.finish(request.run_dir)
