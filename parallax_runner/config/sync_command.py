"""Finds `action=sync` on a command line. This action runs without Hydra, which would create a run directory."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from parallax_runner.config.compose import CONFIG_NAME, Composer, resolve
from parallax_runner.errors import COMMAND_LINE, ConfigError, Setting


@dataclass(frozen=True)
class SyncCommand:
    """The folder whose records are sent, the tracker that sends them, and the `tracking` keys that the command line
    sets."""

    folder: Path
    tracker: str
    given: Mapping[str, Any]


def sync_command(arguments: argparse.Namespace) -> SyncCommand | None:
    """Returns the folder whose records are sent, the tracker and its settings. Returns None for any other action.
    The command line must already have been checked.

    Raises ConfigError for a sweep.
    """
    if "action=sync" not in arguments.overrides or arguments.cfg is not None:
        return None
    if arguments.multirun:
        raise ConfigError("this action needs one run_dir, which can be the folder of a sweep").about(
            Setting("action", "sync", where=COMMAND_LINE), remedy="omit -m"
        )
    composer = Composer(arguments.config_name or CONFIG_NAME, arguments.config_path, arguments.config_dir)
    job = composer.job(arguments.overrides)
    config = resolve(job)
    keys = [key.removeprefix("tracking.") for key in job.origins.given("tracking")]
    given = {key: OmegaConf.select(config.tracking, key) for key in keys}
    return SyncCommand(Path(config.run_dir).resolve(), config.tracking.tracker, given)
