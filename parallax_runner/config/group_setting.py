"""Finds the setting that chooses or changes a configuration group, if there is one."""

from collections.abc import Iterator

from parallax_runner.config.explain import shown, written
from parallax_runner.config.location import conf_dir
from parallax_runner.config.origins import ConfigFile, Origins
from parallax_runner.errors import Setting


def setting_of(group: str, origins: Origins) -> Setting | None:
    """Returns the setting that chooses or changes `group`, with its origin, or None if there is no such setting.

    Ignores the default in the main configuration, and the values in the file of the selected choice. Prefers a setting
    on the command line to a setting in a file, because it is easier to remove.
    """
    return next(_settings(group, origins), None)


def _settings(group: str, origins: Origins) -> Iterator[Setting]:
    for override in reversed(origins.overrides):
        if _is_within(override.key_or_group, group):
            yield Setting.typed(shown(str(override.input_line)), where=origins.giver)
    for file in reversed(origins.files):
        for chosen, choice, where in file.defaults(overrides=True):
            if chosen == group:
                yield Setting(group, choice, where=where)
        for key in () if _has_defaults(file, group) else file.values:
            if _is_within(key, group) and not isinstance(file.values[key], dict):
                yield Setting(key, shown(written(file.values[key])), where=file.where(key))


def _has_defaults(file: ConfigFile, group: str) -> bool:
    """Returns whether the file contains the defaults of the group: it is the file of a choice, or the package's main
    configuration."""
    return file.group == group or file.path == conf_dir() / "config.yaml"


def _is_within(key: str, group: str) -> bool:
    return key == group or key.startswith(f"{group}.")
