"""Finds `action=sync` on a command line: it is done without Hydra, which would make a folder for a run."""

import argparse
from pathlib import Path

from parallax_runner.config.compose import CONFIG_NAME, Composer, resolve
from parallax_runner.errors import ConfigError


def folder_to_sync(arguments: argparse.Namespace) -> Path | None:
    """The folder whose journals are to be sent, None for another action; the command line was checked before.

    Raises ConfigError for a sweep.
    """
    if "action=sync" not in arguments.overrides or arguments.cfg is not None:
        return None
    if arguments.multirun:
        raise ConfigError(
            "action=sync (command line): it takes one run_dir, which may be a sweep's folder; leave out -m"
        )
    composer = Composer(arguments.config_name or CONFIG_NAME, arguments.config_path, arguments.config_dir)
    return Path(resolve(composer.job(arguments.overrides)).run_dir).resolve()
