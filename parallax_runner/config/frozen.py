"""The validated configuration as an object and as a file. The driver resolves the configuration once, and every worker
and server reads the file. A value that depends on an environment variable is not in the file (environment.py): the
driver sends it to the workers and servers.

This module does not need Hydra.
"""

import dataclasses
import io
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError

from parallax_runner.config import environment, targets
from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig, keys_of
from parallax_runner.config.structured import STRUCTURED, group_in
from parallax_runner.config.unused_keys import without_unused
from parallax_runner.errors import ConfigError
from parallax_runner.files.plain import read_text
from parallax_runner.files.whole import write_whole

FILE_NAME = "config.yaml"
SCRIPT, FIT = targets.SCRIPT, targets.FIT


def run_config(composed: object) -> RunConfig:
    """Returns the configuration that Hydra has composed, with every interpolation resolved. The values must already be
    checked. Keys that the configuration does not use get the values that are actually in effect."""
    return without_unused(as_written(composed))


def as_written(composed: object) -> RunConfig:
    """Returns the same configuration as `run_config`, but unused keys keep the values that the user set."""
    assert isinstance(composed, DictConfig)
    content: Any = OmegaConf.to_container(composed, resolve=True)
    return dataclasses.replace(from_plain(content), from_environment=environment.found_in(composed))


def job_config(composed: object, sweep_dir: Path, title: str) -> RunConfig:
    """Returns the configuration of a job of the sweep in this folder. A job without a run name is recorded under its
    title."""
    assert isinstance(composed, DictConfig)
    with read_write(composed), open_dict(composed):
        composed.sweep.dir = str(sweep_dir)
        if composed.tracking.enabled and composed.tracking.run_name is None:
            composed.tracking.run_name = title
    return run_config(composed)


def from_plain(content: Mapping[str, Any]) -> RunConfig:
    """Returns the configuration from the dictionaries that `plain` returns. Missing keys get the schema's defaults."""
    config: RunConfig = _instance(RunConfig, content)
    return config


def plain(value: Any) -> Any:
    """Returns a configuration, or a part of it, as dictionaries and lists."""
    if dataclasses.is_dataclass(value):
        return {entry.name: plain(getattr(value, entry.name)) for entry in keys_of(value)}
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, tuple) else value


def written(config: RunConfig) -> dict[str, Any]:
    """Returns the configuration as dictionaries and lists, for whatever is written or sent to others. A value that
    depends on an environment variable is the interpolation."""
    content: dict[str, Any] = environment.as_written(plain(config), config.from_environment)
    return content


def needed_variables(config: RunConfig) -> list[str]:
    """Returns the names of the environment variables without which the configuration cannot be composed again."""
    return environment.variables_of(config.from_environment)


def for_processes(config: RunConfig) -> dict[str, str]:
    """Returns the environment variable that a worker or server needs to read config.yaml."""
    return environment.for_processes(plain(config), config.from_environment)


def freeze(config: RunConfig, run_dir: str | os.PathLike[str]) -> Path:
    """Writes `run_dir/config.yaml` and returns its path. A value that depends on an environment variable is written as
    its interpolation.

    The file is written atomically, because a worker may read it at any time.
    """
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    values = {path: one._replace(value=environment.escaped(one.value)) for path, one in config.from_environment.items()}
    content = environment.as_written(environment.escaped(plain(config)), values)
    write_whole(path, OmegaConf.to_yaml(OmegaConf.create(content)))
    return path


def load(run_dir: str | os.PathLike[str]) -> RunConfig:
    """Reads `run_dir/config.yaml`, and the values that the driver has sent to this process.

    Raises ConfigError if a value depends on an environment variable that is not set, and the driver has not sent it.
    """
    path = Path(run_dir) / FILE_NAME
    content = OmegaConf.load(path)
    environment.take_values(content)
    config = OmegaConf.merge(OmegaConf.structured(STRUCTURED), content)
    try:
        return run_config(config)
    except InterpolationResolutionError as error:
        raise _unset(path, str(error.full_key), error) from error


def _unset(path: Path, key: str, error: InterpolationResolutionError) -> ConfigError:
    reason = str(error).splitlines()[0].partition("raised while resolving interpolation: ")[2].strip('"') or str(error)
    return ConfigError(f"{path}: {key} cannot be read: {reason}; set the variable")


def is_of_script(config: RunConfig) -> bool:
    """Returns whether a script provides the model."""
    return config.model["_target_"] in (SCRIPT, FIT)


def is_fit(config: RunConfig) -> bool:
    """Returns whether the run trains the Keras model of a script that calls fit."""
    return bool(config.model["_target_"] == FIT)


def has_epochs(config: RunConfig) -> bool:
    """Returns whether all ranks wait between epochs for the driver to decide how training continues."""
    return is_fit(config) or (action_of(config).trains and config.train.patience is not None)


def keeps_epochs(config: RunConfig) -> bool:
    """Returns whether checkpoints contain the state of the epoch."""
    return is_fit(config) and bool(action_of(config).trains)


def is_quiet(config: RunConfig) -> bool:
    """Returns whether the script has asked for a terminal that shows only warnings and errors."""
    return is_fit(config) and action_of(config).trains and config.model.get("verbose", 1) != 1


def shows_progress(config: RunConfig) -> bool:
    """Returns whether the terminal shows the plan and the progress of steps."""
    return config.redirect_path is None and not is_quiet(config)


def action_in(run_dir: Path) -> str | None:
    """Returns the action of the run in this folder, or None if there is none, or its config.yaml cannot be read."""
    try:
        content = yaml.safe_load(read_text(run_dir / FILE_NAME))
    except (OSError, ValueError, RecursionError, YAMLError):
        return None
    found = content.get("action") if isinstance(content, dict) else None
    return found if isinstance(found, str) else None


def ckpt_dir_of(run_dir: Path) -> str | None:
    """Returns the `ckpt.dir` of another run, which may come from a different version of this project. Returns None if
    that run's config.yaml has no such key. Raises ConfigError if the folder depends on an environment variable that is
    not set."""
    try:
        config = OmegaConf.load(io.StringIO(read_text(run_dir / FILE_NAME)))
        folder = OmegaConf.select(config, "ckpt.dir")
    except InterpolationResolutionError as error:
        raise _unset(run_dir / FILE_NAME, "ckpt.dir", error) from error
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException):
        return None
    return folder if isinstance(folder, str) else None


def _instance(schema: Any, content: Mapping[str, Any]) -> Any:
    return schema(
        **{
            entry.name: _value(entry.type, content[entry.name])
            for entry in dataclasses.fields(schema)
            if entry.name in content
        }
    )


def _value(kind: Any, content: Any) -> Any:
    group = kind if dataclasses.is_dataclass(kind) else group_in(kind)
    return _read_only(content) if group is None or content is None else _instance(group, content)


def _read_only(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _read_only(inner) for key, inner in value.items()})
    return tuple(_read_only(inner) for inner in value) if isinstance(value, list) else value


def exports_model(config: RunConfig) -> bool:
    """Returns whether a training exports its model at its end, for the tracker that gets its checkpoints."""
    sends_checkpoints = config.tracking.enabled and config.tracking.log_checkpoints != "none"
    return sends_checkpoints and config.ckpt.enabled and config.model["_target_"] != SCRIPT
