"""Adds the origins of settings to the failure of another process of the run, such as a worker. That process knows the
value of a setting, but not where it was set."""

from __future__ import annotations

import dataclasses

from parallax_runner.config import error_origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.launch.processes import RunResult


def with_origins(result: RunResult, config: RunConfig) -> RunResult:
    """Returns the result. If a process has failed because of a setting, the reason tells where it was set. `config` is
    the configuration that the user gave, not that of a trial."""
    failure = result.failure
    if failure is None or failure.parts is None:
        return result
    parts = error_origins.with_origins(failure.parts, config)
    return dataclasses.replace(result, failure=dataclasses.replace(failure, parts=parts, reason=str(parts)))
