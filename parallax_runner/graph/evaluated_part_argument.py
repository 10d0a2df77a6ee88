"""The argument `evaluated_part` of a data function, which says where the run needs labels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from parallax_runner.config.schema import RunConfig
from parallax_runner.data.evaluated import part_to_evaluate

EVALUATED_PART = "evaluated_part"


def evaluated_part_argument(function: Callable[..., Any], config: RunConfig) -> dict[str, str | None]:
    """Returns the argument `evaluated_part` if the function has such a parameter and the group sets no value: the part
    whose loss the run computes, or None if it computes none, as in predictions. Otherwise returns an empty dict."""
    if EVALUATED_PART in config.data or not _has_parameter(function):
        return {}
    return {EVALUATED_PART: part_to_evaluate(config)}


def _has_parameter(function: Callable[..., Any]) -> bool:
    try:
        return EVALUATED_PART in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
