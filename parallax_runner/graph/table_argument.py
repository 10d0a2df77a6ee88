"""The argument `table` of a model's function, which describes the features of data with columns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from parallax_runner.data.dataset import Dataset
from parallax_runner.errors import ConfigError, Setting

TABLE = "table"


def table_argument(function: Callable[..., Any], content: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Returns the argument `table` if the function has such a parameter and its group sets no value: a mapping from the
    name of each feature to its `TableFeature`. Otherwise returns an empty dict.

    Raises ConfigError if the function needs the argument and the data has no columns.
    """
    parameter = _parameter(function)
    if parameter is None or TABLE in content:
        return {}
    described = getattr(dataset, "table_features", None)
    if described is not None:
        return {TABLE: dict(described)}
    if parameter.default is not inspect.Parameter.empty:
        return {}
    raise ConfigError(
        "this model is built for the columns of a table, and the data has none; choose data=table or data=criteo"
    ).about(Setting.of("model._target_", content["_target_"]))


def _parameter(function: Callable[..., Any]) -> inspect.Parameter | None:
    try:
        return inspect.signature(function).parameters.get(TABLE)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return None


def roles_of(dataset: Dataset) -> dict[str, str]:
    """Returns the keys `labels`, `sample_weight` and `groups` of the group `model` that the columns of the data
    determine."""
    if getattr(dataset, "table_features", None) is None:
        return {}
    found = {key: getattr(dataset, key, None) for key in ("labels", "sample_weight", "groups")}
    return {key: name for key, name in found.items() if name is not None}
