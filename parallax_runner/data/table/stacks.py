"""Features that consist of several columns, as `data.features` describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parallax_runner.config.suggestions import nearest
from parallax_runner.data.table.columns.column import Column, FeatureColumn, Role, State, TableFeature
from parallax_runner.data.table.columns.sampled import Sampled
from parallax_runner.errors import ConfigError, Setting

KEY = "data.features"


@dataclass(frozen=True)
class Stack:
    """A feature [columns] that has one value of each column, in this order."""

    name: str
    columns: tuple[str, ...]

    def described(self, parts: Mapping[str, TableFeature]) -> TableFeature:
        """Returns what a model is told about the feature. `parts` are the features of the columns."""
        made = [parts[name] for name in self.columns]
        sizes = tuple(size for one in made for size in one.sizes)
        return TableFeature(made[0].kind, (len(made),), made[0].dtype, sizes, grows=made[0].grows)


def stacks_of(given: Any, columns: Sequence[Column]) -> tuple[Stack, ...]:
    """Returns the stacks that `data.features` describes: lists of columns by the name of the feature.

    Raises ConfigError if a column is unknown, is no input or is in two stacks.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ConfigError("expected lists of columns by name, such as {dense: [I1, I2]}").about(Setting.of(KEY, given))
    stacks = tuple(_stack(str(name), content, columns) for name, content in given.items())
    _check_names(stacks, columns)
    return stacks


def check_alike(stack: Stack, parts: Mapping[str, TableFeature]) -> None:
    """Raises ConfigError if the columns of a stack do not have one value each, of the same kind."""
    first = parts[stack.columns[0]]
    for name in stack.columns:
        one = parts[name]
        is_alike = (one.kind, one.grows) == (first.kind, first.grows)
        if one.shape != () or not is_alike:
            expected = f"expected columns with one value of the same kind; «{name}» is {_told(one)}"
            beside = "" if name == stack.columns[0] else f", «{stack.columns[0]}» is {_told(first)}"
            raise ConfigError(f"{expected}{beside}").about(Setting(f"{KEY}.{stack.name}", None))


def described_features(
    columns: Sequence[Column], stacks: Sequence[Stack], states: Mapping[str, State]
) -> dict[str, TableFeature]:
    """Returns what a model is told about each feature. `states` has what each column has learned. Raises ConfigError if
    columns cannot be stacked."""
    found = _described_columns(columns, states)
    for stack in stacks:
        check_alike(stack, found)
    stacked = {stack.name: stack.described(found) for stack in stacks}
    gone = set(_stacked(stacks))
    return stacked | {name: one for name, one in found.items() if name not in gone}


def _described_columns(columns: Sequence[Column], states: Mapping[str, State]) -> dict[str, TableFeature]:
    found = {one.name: one.described(states[one.name]) for one in columns if isinstance(one, FeatureColumn)}
    drawn = [one for one in columns if isinstance(one, Sampled)]
    return found | {one.name: one.described_like(found[one.from_]) for one in drawn}


def _stacked(stacks: Sequence[Stack]) -> list[str]:
    return [column for stack in stacks for column in stack.columns]


def _told(one: TableFeature) -> str:
    growing = " with a vocabulary that grows" if one.grows else ""
    return f"of the kind {one.kind}{growing}"


def _stack(name: str, content: Any, columns: Sequence[Column]) -> Stack:
    key = f"{KEY}.{name}"
    if isinstance(content, str) or not isinstance(content, Sequence) or not content:
        raise ConfigError("expected a list of columns, such as [I1, I2]").about(Setting.of(key, content))
    known = [one.name for one in columns if one.role is Role.INPUT]
    for column in map(str, content):
        if column not in known:
            meant = nearest(column, known)
            remedy = None if meant is None else f"Did you mean {meant}?"
            raise ConfigError(f"«{column}» is no input in data.columns.").about(
                Setting.of(key, list(content)), remedy=remedy
            )
    return Stack(name, tuple(map(str, content)))


def _check_names(stacks: Sequence[Stack], columns: Sequence[Column]) -> None:
    stacked = _stacked(stacks)
    twice = sorted({name for name in stacked if stacked.count(name) > 1})
    if twice:
        raise ConfigError(f"«{twice[0]}» is in two places; a column is part of one feature").about(Setting(KEY, None))
    alone = {one.name for one in columns} - set(stacked)
    for stack in stacks:
        if stack.name in alone:
            raise ConfigError("a column has this name; choose another name for the feature").about(
                Setting(f"{KEY}.{stack.name}", None)
            )
