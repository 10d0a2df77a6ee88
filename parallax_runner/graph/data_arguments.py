"""The arguments of a data function that follow from the action."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from parallax_runner.config.actions import action_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.evaluated import part_to_evaluate


def data_arguments(function: Callable[..., Any], config: RunConfig) -> dict[str, Any]:
    """Returns those of the following arguments for which the function has a parameter and the group `data` no value.

    `evaluated_part` is the part whose loss the run computes, or None if it computes none, as in predictions.
    `reads_rows` is False if the run only needs what the data looks like, as in a plan.
    """
    known: dict[str, Callable[[], Any]] = {
        "evaluated_part": lambda: part_to_evaluate(config),
        "reads_rows": lambda: action_of(config).reads_rows,
    }
    parameters = _parameters(function)
    return {name: value() for name, value in known.items() if name in parameters and name not in config.data}


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return frozenset()
