"""The base of the actions that use trained weights and do not go on training: evaluate and export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from parallax_runner.actions.action import Action
from parallax_runner.config.explain import refusal
from parallax_runner.config.frozen import action_in
from parallax_runner.errors import ConfigError, Setting

if TYPE_CHECKING:
    from parallax_runner.config.origins import Origins
    from parallax_runner.config.schema import RunConfig

REMEDY = "set ckpt.resume to a checkpoint, a folder of checkpoints or a run directory"


class UsesCheckpoint(Action):
    """Reads the weights that `ckpt.resume` names."""

    goes_on_training: ClassVar[bool] = False

    def check(self, config: RunConfig, origins: Origins) -> None:
        """Raises ConfigError if the configuration allows no checkpoint, or names the run's own folder."""
        if not config.ckpt.enabled:
            needed = f"this action reads a checkpoint; omit ckpt=off, and {REMEDY}"
            raise refusal("action", origins, needed, value=config.action)
        if config.ckpt.resume == "never":
            raise refusal("ckpt.resume", origins, f"action={config.action} reads a checkpoint; {REMEDY}", value="never")

    def begin(self, config: RunConfig) -> None:
        """Raises ConfigError if the folder of this run is that of another one, whose record would be lost."""
        other = action_in(Path(config.run_dir))
        if other is not None and other != config.action:
            raise ConfigError(f"this folder has a run with action={other}").about(
                Setting.of("run_dir", config.run_dir), remedy="omit run_dir or choose another folder"
            )

    def check_start(self, config: RunConfig, done_steps: int) -> None:
        """Raises ConfigError if `ckpt.dir`, in which `ckpt.resume=auto` looks, has no checkpoint."""
        if config.ckpt.resume == "never":
            raise ConfigError(f"{config.ckpt.dir} has no checkpoint").about(
                Setting("action", config.action), remedy=REMEDY
            )
