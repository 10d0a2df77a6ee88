"""Tracks where each value comes from: the command line, or a line of a file."""

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from parallax_runner.errors import COMMAND_LINE


@dataclass(frozen=True)
class Origin:
    """One setting of a key. `where` is the origin as text, and `value` is the value as written."""

    where: str
    value: Any


def flatten(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted keys and values of a nested dictionary. An inner dictionary comes before its items."""
    for name, value in values.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        yield key, value
        if isinstance(value, dict):
            yield from flatten(value, key)


@dataclass(frozen=True)
class ConfigFile:
    """One file of a composed configuration, with the package (dotted prefix) of its content."""

    path: Path
    package: str
    group: str

    @cached_property
    def values(self) -> dict[str, Any]:
        """The dotted keys that this file sets in the whole configuration, with the values as written."""
        loaded = OmegaConf.load(self.path)
        if not isinstance(loaded, DictConfig):
            return {}
        content = OmegaConf.to_container(loaded, resolve=False)
        assert isinstance(content, dict)
        content.pop("defaults", None)
        return dict(flatten(content, self.package))

    @cached_property
    def _tree(self) -> yaml.Node | None:
        """The content as YAML nodes, which have line numbers."""
        node: yaml.Node | None = yaml.compose(self.path.read_text(encoding="utf-8"))
        return node

    def where(self, key: str) -> str:
        """Returns the file and line that set `key`."""
        relative = key.removeprefix(self.package).lstrip(".").split(".")
        return f"{readable(self.path)}:{self._line(relative)}"

    def defaults(self, *, overrides: bool = False) -> Iterator[tuple[str, str, str]]:
        """Yields the group, the choice and the file:line of each entry in the file's defaults list. With `overrides`,
        yields only entries that override another choice."""
        for key, value in _entries(self._tree):
            if key.value != "defaults" or not isinstance(value, yaml.SequenceNode):
                continue
            for item in value.value:
                for entry, choice in _entries(item):
                    *words, name = entry.value.split()
                    group = name.split("@")[0].strip("/")
                    if overrides and "override" not in words:
                        continue
                    yield group, choice.value, f"{readable(self.path)}:{choice.start_mark.line + 1}"

    def _line(self, parts: Sequence[str]) -> int:
        node, line = self._tree, 1
        for part in parts:
            for key, value in _entries(node):
                if str(key.value) == part:
                    node, line = value, key.start_mark.line + 1
                    break
        return line


def _entries(node: yaml.Node | None) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    return node.value if isinstance(node, yaml.MappingNode) else []


def readable(path: Path) -> str:
    """Returns the path as a user would type it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


class Origins:
    """Finds, for one job, the last setting of each key. `giver` is the source of the overrides, as messages name it."""

    giver = COMMAND_LINE

    def __init__(self, overrides: Sequence[Override], files: Sequence[ConfigFile]) -> None:
        self.files = files
        self.overrides = overrides
        self._assignments = [override for override in overrides if not override.is_delete()]

    def given_by(self, giver: str) -> Self:
        """Returns the same origins, with another source of the overrides, such as `fit`."""
        changed = copy.copy(self)
        changed.giver = giver
        return changed

    def of(self, key: str) -> Origin | None:
        """Returns the last setting of `key`, or None if only the schema has a value."""
        for override in reversed(self._assignments):
            for name, value in self._set_by(override):
                if name == key:
                    return Origin(self.giver, value)
        for file in reversed(self.files):
            if key in file.values:
                return Origin(file.where(key), file.values[key])
        return None

    def chosen(self, group: str, *, with_defaults: bool = False) -> Origin | None:
        """Returns the last setting that selects a choice of `group`, or None if only the main configuration does. With
        `with_defaults`, also returns the default in the main configuration."""
        is_group = any(file.group == group for file in self.files)
        for override in reversed(self._assignments if is_group else ()):
            if override.key_or_group == group and isinstance(override.value(), str):
                return Origin(self.giver, override.value())
        origin = self._chosen_in_files(group, overrides=True)
        if origin is None and with_defaults:
            return self._chosen_in_files(group, overrides=False)
        return origin

    def _chosen_in_files(self, group: str, *, overrides: bool) -> Origin | None:
        """Returns the last entry of a defaults list that selects a choice of `group`, or None. `overrides` is the
        argument of `ConfigFile.defaults`."""
        for file in reversed(self.files):
            for other, choice, where in file.defaults(overrides=overrides):
                if other == group:
                    return Origin(where, choice)
        return None

    def given(self, prefix: str = "") -> list[str]:
        """Returns the keys under `prefix` that the command line sets. Without a prefix, returns all keys that it
        sets."""
        names = [name for override in self._assignments for name, _ in self._set_by(override)]
        return [name for name in names if not prefix or name.startswith(f"{prefix}.")]

    def is_set(self, key: str) -> bool:
        """Returns whether the command line, or a file of another group, sets `key`."""
        group = key.partition(".")[0]
        return key in self.given(group) or any(key in file.values for file in self.files if file.group != group)

    def keys_set(self, key: str) -> list[str]:
        """Returns those keys, `key` or keys under it, that the command line or a file of another group sets."""
        group = key.partition(".")[0]
        in_files = [name for file in self.files if file.group != group for name in file.values]
        names = dict.fromkeys([*self.given(), *in_files])
        return [name for name in names if f"{name}.".startswith(f"{key}.") and not self._is_inner(name)]

    def _is_inner(self, key: str) -> bool:
        """Returns whether the last setting of `key` is a dictionary, whose items are separate settings."""
        origin = self.of(key)
        return origin is not None and isinstance(origin.value, dict)

    def added(self) -> list[str]:
        """Returns the keys that the command line adds with a plus sign."""
        adding = [override for override in self._assignments if override.is_add() or override.is_force_add()]
        inner = [name for override in adding for name, _ in self._set_by(override)]
        return [*(override.key_or_group for override in adding), *inner]  # an added mapping is a key, too

    @staticmethod
    def _set_by(override: Override) -> Iterator[tuple[str, Any]]:
        if override.is_sweep_override():
            return
        value = override.value()
        if isinstance(value, dict):
            yield from flatten(value, override.key_or_group)
        else:
            yield override.key_or_group, value
