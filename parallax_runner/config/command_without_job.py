"""Finds an action that runs no job on a command line, such as `action=sync`. Such an action runs without Hydra, which
would create a run directory."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from parallax_runner.config.actions import action_named
from parallax_runner.config.compose import CONFIG_NAME, Composer, resolve
from parallax_runner.errors import COMMAND_LINE, ConfigError, Setting

SETS_ACTION = "action="


@dataclass(frozen=True)
class CommandWithoutJob:
    """The action, the folder of the run or the sweep, its tracker, and the `tracking` keys that the command line
    sets."""

    action: Any

    folder: Path
    tracker: str
    given: Mapping[str, Any]


def command_without_job(arguments: argparse.Namespace) -> CommandWithoutJob | None:
    """Returns the command, or None if the action runs a job. The command line must already have been checked.

    Raises ConfigError for a sweep.
    """
    names = [word.removeprefix(SETS_ACTION) for word in arguments.overrides if word.startswith(SETS_ACTION)]
    if not names or arguments.cfg is not None:
        return None
    action = action_named(names[-1])
    if action.runs_a_job:
        return None
    if arguments.multirun:
        raise ConfigError("this action needs one run_dir, which can be the folder of a sweep").about(
            Setting("action", names[-1], where=COMMAND_LINE), remedy="omit -m"
        )
    composer = Composer(arguments.config_name or CONFIG_NAME, arguments.config_path, arguments.config_dir)
    job = composer.job(arguments.overrides)
    config = resolve(job)
    keys = [key.removeprefix("tracking.") for key in job.origins.given("tracking")]
    given = {key: OmegaConf.select(config.tracking, key) for key in keys}
    return CommandWithoutJob(action, Path(config.run_dir).resolve(), config.tracking.tracker, given)
