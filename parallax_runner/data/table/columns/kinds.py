"""Finds the kinds of columns by name, and reads `data.columns`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from parallax_runner.config.suggestions import nearest
from parallax_runner.data.table.columns.category import Category
from parallax_runner.data.table.columns.column import Column, Role
from parallax_runner.data.table.columns.sampled import Sampled
from parallax_runner.data.table.columns.settings import column_of
from parallax_runner.errors import ConfigError, Setting

KEY = "data.columns"
KINDS = {
    "number": "number.Number",
    "category": "category.Category",
    "categories": "categories.Categories",
    "text": "text.Text",
    "label": "label.Label",
    "weight": "weight.Weight",
    "group": "group.Group",
    "id": "id.Id",
    "sampled": "sampled.Sampled",
}
FORM = "expected a kind with its settings, such as {number: {fill: 0}}, or a kind alone, such as category"


def columns_of(given: Any) -> tuple[Column, ...]:
    """Returns the columns that `data.columns` describes: a kind for each name, alone or with its settings.

    Raises ConfigError for an unknown kind, an unknown setting or a wrong value, and if the columns do not fit together.
    """
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(
            "expected the columns by name, such as {user: category, price: number, clicked: label}"
        ).about(Setting.of(KEY, given))
    columns = tuple(_column(str(name), content) for name, content in given.items())
    _check_roles(columns)
    _check_draws(columns)
    return columns


def _column(name: str, content: Any) -> Column:
    key = f"{KEY}.{name}"
    word, settings = _kind_and_settings(key, content)
    if word not in KINDS:
        meant = nearest(word, KINDS)
        remedy = None if meant is None else f"Did you mean {meant}?"
        raise ConfigError(f"no such kind of column; expected one of {', '.join(KINDS)}.").about(
            Setting.of(key, word), remedy=remedy
        )
    module, _, attribute = KINDS[word].partition(".")
    kind: type[Column] = getattr(importlib.import_module(f"parallax_runner.data.table.columns.{module}"), attribute)
    return column_of(kind, name, f"{key}.{word}", settings)


def _kind_and_settings(key: str, content: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(content, str):
        return content, {}
    if not isinstance(content, Mapping) or len(content) != 1:
        raise ConfigError(FORM).about(Setting.of(key, content))
    ((word, settings),) = content.items()
    if settings is None:
        return str(word), {}
    if not isinstance(settings, Mapping):
        raise ConfigError(FORM).about(Setting.of(f"{key}.{word}", settings))
    return str(word), settings


def _check_roles(columns: tuple[Column, ...]) -> None:
    for role in (Role.LABEL, Role.WEIGHT):
        names = [one.name for one in columns if one.role is role]
        if len(names) > 1:
            raise ConfigError(f"expected one column of the kind {role.value}, found {', '.join(names)}").about(
                Setting(KEY, None)
            )
    if not any(one.role is Role.INPUT for one in columns):
        raise ConfigError("expected at least one column that is an input: number, category, categories or text").about(
            Setting(KEY, None)
        )


def _check_draws(columns: tuple[Column, ...]) -> None:
    sources = [one.name for one in columns if isinstance(one, Category) and not one.grows]
    for column in columns:
        if isinstance(column, Sampled) and column.from_ not in sources:
            meant = nearest(column.from_, sources)
            remedy = None if meant is None else f"Did you mean {meant}?"
            known = ", ".join(sources) or "none"
            raise ConfigError(f"expected a column of the kind category with ids; there is {known}.").about(
                Setting.of(f"{KEY}.{column.name}.sampled.from", column.from_), remedy=remedy
            )
