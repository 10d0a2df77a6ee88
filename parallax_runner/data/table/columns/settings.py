"""The settings of a column's kind: which there are, and which values they accept."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from parallax_runner.config.suggestions import nearest
from parallax_runner.data.table.columns.column import Column
from parallax_runner.errors import ConfigError, Setting

READ = "read"
Read = Callable[[Any], Any]  # returns a value as the column keeps it; raises ValueError with what was expected
Kind = TypeVar("Kind", bound=Column)


def setting(default: Any, read: Read) -> Any:
    """Declares a setting, as a field of a column's class."""
    return dataclasses.field(default=default, metadata={READ: read})


def column_of(kind: type[Kind], name: str, key: str, settings: Mapping[str, Any]) -> Kind:
    """Returns a column with these settings. `key` names them in messages.

    Raises ConfigError for an unknown setting, a value of another kind, or settings that do not fit together.
    """
    readers = {one.name.rstrip("_"): one for one in dataclasses.fields(kind) if READ in one.metadata}
    read: dict[str, Any] = {}
    for word, value in settings.items():
        if word not in readers:
            raise _unknown(f"{key}.{word}", value, kind, list(readers))
        field = readers[word]
        try:
            read[field.name] = field.metadata[READ](value)
        except ValueError as error:
            raise ConfigError(f"expected {error}").about(Setting.of(f"{key}.{word}", value)) from error
    try:
        column = kind(name, **read)
    except TypeError as error:  # a setting without a default
        raise ConfigError(f"{kind.kind} needs the settings {', '.join(readers)}").about(Setting(key, None)) from error
    reason = column.check()
    if reason is not None:
        raise ConfigError(reason).about(Setting(key, None))
    return column


def _unknown(key: str, value: Any, kind: type[Column], words: Sequence[str]) -> ConfigError:
    parent, _, word = key.rpartition(".")
    known = f"{kind.kind} has {', '.join(words)}" if words else f"{kind.kind} has no settings"
    meant = nearest(word, words)
    remedy = None if meant is None else f"Did you mean {parent}.{meant}?"
    return ConfigError(f"no such setting: {known}.").about(Setting.of(key, value), remedy=remedy)


def optional(read: Read) -> Read:
    """Returns a reader that also accepts null."""
    return lambda value: None if value is None else read(value)


def flag(value: Any) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def number(value: Any) -> float:
    """Reads a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("a number")
    return float(value)


def count(value: Any) -> int:
    """Reads an integer, at least 1."""
    if type(value) is not int or value < 1:  # Python's bool is an int
        raise ValueError("an integer, at least 1")
    return value


def text(value: Any) -> str:
    """Reads a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("a string")
    return value


def choice(words: Sequence[str]) -> Read:
    """Returns a reader of one of these words. null stands for the word none."""

    def read(value: Any) -> str:
        word = "none" if value is None else value
        if word not in words:
            raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}")
        return str(word)

    return read


def ascending(value: Any) -> tuple[float, ...]:
    """Reads a list of increasing numbers."""
    numbers = _list(value, number)
    if not numbers or any(second <= first for first, second in itertools.pairwise(numbers)):
        raise ValueError("a list of increasing numbers, such as [1, 2, 5]")
    return numbers


def bounds(value: Any) -> tuple[float, ...]:
    """Reads the lowest and the highest value."""
    numbers = _list(value, number)
    if len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise ValueError("the lowest and the highest value, such as [0, 9]")
    return numbers


def texts(value: Any) -> tuple[str, ...]:
    """Reads a list of at least two different strings. Numbers count as they are written."""
    words = _list(value, lambda one: one if isinstance(one, str) else str(one))
    if len(words) < 2 or len(set(words)) < len(words):
        raise ValueError("a list of at least two different strings, such as [no, yes]")
    return words


def _list(value: Any, read: Read) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return ()
    return tuple(read(one) for one in value)
