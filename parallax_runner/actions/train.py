"""`action=train`: trains the model."""

from __future__ import annotations

from typing import ClassVar

from parallax_runner.actions.runs_steps import RunsSteps


class Train(RunsSteps):
    """Trains the model, writes checkpoints, and exports the model at the end."""

    trains: ClassVar[bool] = True
    can_be_profiled: ClassVar[bool] = True
    in_fit: ClassVar[bool] = True
    in_script: ClassVar[bool] = True
    purpose: ClassVar[str] = "train"
