"""Finds `action=sync` on a command line: it is done without Hydra, which would make a folder for a run."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from parallax_runner.config.compose import CONFIG_NAME, Composer, resolve
from parallax_runner.errors import ConfigError


@dataclass(frozen=True)
class SyncCommand:
    """The folder whose journals are to be sent. `names_store`: the command line says where; `uri` is then
    `tracking.uri`, None for the environment's."""

    folder: Path
    names_store: bool
    uri: str | None


def sync_command(arguments: argparse.Namespace) -> SyncCommand | None:
    """What to send, None for another action; the command line was checked before.

    Raises ConfigError for a sweep.
    """
    if "action=sync" not in arguments.overrides or arguments.cfg is not None:
        return None
    if arguments.multirun:
        raise ConfigError(
            "action=sync (command line): it takes one run_dir, which may be a sweep's folder; leave out -m"
        )
    composer = Composer(arguments.config_name or CONFIG_NAME, arguments.config_path, arguments.config_dir)
    job = composer.job(arguments.overrides)
    config = resolve(job)
    names_store = "tracking.uri" in job.origins.given("tracking")
    return SyncCommand(Path(config.run_dir).resolve(), names_store, config.tracking.uri)
