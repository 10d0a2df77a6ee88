"""Refuses a file that Hydra would not use as the main configuration, or that cannot be one."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from parallax_runner.config.origins import readable
from parallax_runner.errors import COMMAND_LINE, ConfigError, Setting

REMEDY = "To train again with a run's settings, repeat its command, or write them into a file in experiment/"
# Keys that only the configuration that a run writes contains together. A main configuration has a defaults list.
OF_A_RUN = frozenset({"action", "run_dir", "model", "data", "optimizer", "train", "comm"})


def check_main_file(name: str, used: Path | None, config_dir: str | None) -> None:
    """Raises ConfigError if `used`, the file of the main configuration `name`, was written by a run, if there is no
    such file, or if `config_dir` contains another file with this name, which Hydra ignores."""
    file = f"{name.removesuffix('.yaml')}.yaml"
    if used is None:
        if "/" in name:
            raise ConfigError(f"there is no such file. {REMEDY}").about(
                Setting.of("--config-name", name, where=COMMAND_LINE)
            )
        return
    ignored = None if config_dir is None else Path(config_dir) / file
    if ignored is not None and ignored.is_file() and not ignored.samefile(used):
        raise ConfigError(f"{readable(ignored)} would be ignored, because {used} has the same name").about(
            Setting.of("--config-dir", config_dir, where=COMMAND_LINE), remedy=f"remove or rename it. {REMEDY}"
        )
    if _is_of_a_run(used):
        raise ConfigError(
            f"{readable(used)}: a run wrote this file, so it has no defaults list and cannot be the main "
            f"configuration. {REMEDY}"
        )


def _is_of_a_run(path: Path) -> bool:
    try:
        content = OmegaConf.load(path)
    except (OSError, OmegaConfBaseException, YAMLError):
        return False  # the composition reports the fault
    return isinstance(content, DictConfig) and "defaults" not in content and content.keys() >= OF_A_RUN
