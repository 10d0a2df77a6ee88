"""Names the origin of a setting in an error that is raised after Hydra has started the job, such as an error about the
graph. Code that raises such an error knows the value of the setting, but not where it was set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parallax_runner.config.frozen import plain
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import ErrorParts, ParallaxError, Setting, written

if TYPE_CHECKING:
    from parallax_runner.config.origins import Origins


def name_origins(error: BaseException, config: RunConfig) -> None:
    """Adds the origin of each setting that the error is about, as in «partition.num=9 (command line): …».

    Does nothing if the error is about no setting of the configuration, or if this process runs no job."""
    if isinstance(error, ParallaxError):
        error.parts = with_origins(error.parts, config)


def with_origins(parts: ErrorParts, config: RunConfig) -> ErrorParts:
    """Returns the parts of an error with the origins of its settings. The error may come from another process of the
    run, such as a worker."""
    if all(setting.where is not None for setting in parts.settings):
        return parts
    from parallax_runner.config.running_job import origins_of_running_job

    origins = origins_of_running_job()
    if origins is None:
        return parts
    content = plain(config)
    return parts.with_origins(lambda setting: _where(setting, origins) if _is_configured(setting, content) else None)


def _is_configured(setting: Setting, content: Mapping[str, Any]) -> bool:
    """Returns whether the configuration has this value. An error may be about another value, such as the mode of a
    trial."""
    node: Any = content
    for part in setting.key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    if setting.item is not None:
        return isinstance(node, list) and setting.item < len(node) and setting.value == written(node[setting.item])
    return setting.value is None or setting.value in _forms(node)


def _forms(value: Any) -> set[str]:
    """Returns the forms in which messages show a value. A path is often shown as an absolute path."""
    if isinstance(value, dict):  # a group, whose choice the message names
        return {str(value["name"])} if "name" in value else set()
    is_path = isinstance(value, str) and bool(value) and "\0" not in value
    paths = {os.path.expanduser(value), os.path.abspath(value), os.path.realpath(value)} if is_path else set()
    return {written(value), *paths}


def _where(setting: Setting, origins: Origins) -> str | None:
    """Returns the origin of a key, or of a group's choice."""
    key = setting.key
    if key == "run_dir" and "hydra.run.dir" in origins.given():
        key = "hydra.run.dir"
    chosen = origins.chosen(key, with_defaults=True)
    if chosen is not None:
        return chosen.where if setting.value == chosen.value else None
    origin = origins.of(key)
    return "default" if origin is None else origin.where
