"""The configuration from which all jobs of a sweep are composed."""

import os
from dataclasses import dataclass

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from parallax_runner.config import job_folder
from parallax_runner.config.hydra_quotes import quoted


@dataclass(frozen=True)
class Master:
    """The configuration and overrides from which the jobs of the sweep in the folder `dir` are composed."""

    config: DictConfig
    overrides: tuple[Override, ...]
    dir: str

    @property
    def more_lines(self) -> list[str]:
        """Overrides to add to the command line. The first override sets the sweep's folder, because the time in the
        folder's name must be the same for all jobs. The second override, if any, removes the keys that all jobs share
        from the names of the jobs' folders."""
        names = job_folder.leave_out_fixed(self.overrides, list(self.config.hydra.sweeper.get("params") or {}))
        return [f"hydra.sweep.dir={quoted(self.dir)}", *([] if names is None else [names])]

    @property
    def jobs_are_known(self) -> bool:
        """Whether all jobs are known before the first job runs."""
        return str(self.config.hydra.sweeper.get("_target_", "")).endswith(".BasicSweeper")


def sweep_dir(master: DictConfig) -> str:
    """Returns the absolute path of a sweep's folder. If the folder's name contains a time, the current time is used."""
    settings = HydraConfig.instance()
    before = settings.cfg
    try:
        settings.set_config(master)
        return os.path.abspath(str(master.hydra.sweep.dir))
    finally:
        settings.cfg = before
