"""What all jobs of a sweep are composed from."""

import os
from dataclasses import dataclass

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from parallax_runner.config import job_folder
from parallax_runner.config.hydra_quotes import quoted


@dataclass(frozen=True)
class Master:
    """What the jobs of a sweep in the folder `dir` are composed from."""

    config: DictConfig
    overrides: tuple[Override, ...]
    dir: str

    @property
    def more_lines(self) -> list[str]:
        """Overrides to add to the command line: the folder, so that the time in its name is taken once, and which
        overrides all jobs have in common."""
        names = job_folder.leave_out_fixed(self.overrides, list(self.config.hydra.sweeper.get("params") or {}))
        return [f"hydra.sweep.dir={quoted(self.dir)}", *([] if names is None else [names])]

    @property
    def jobs_are_known(self) -> bool:
        """Whether the jobs can be listed before the first one runs."""
        return str(self.config.hydra.sweeper.get("_target_", "")).endswith(".BasicSweeper")


def sweep_dir(master: DictConfig) -> str:
    """The folder of a sweep, absolute; its time, if it has one in its name, is now."""
    settings = HydraConfig.instance()
    before = settings.cfg
    try:
        settings.set_config(master)
        return os.path.abspath(str(master.hydra.sweep.dir))
    finally:
        settings.cfg = before
