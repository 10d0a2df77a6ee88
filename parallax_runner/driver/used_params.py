"""The parameters that a tracker records for a run: the run's configuration without the parts that the run does not
use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_runner.config.actions import keys_of_other_actions
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.frozen import written
from parallax_runner.config.schema import RunConfig


def used_params(config: RunConfig) -> dict[str, Any]:
    """Returns the parameters as nested dictionaries without null values. A value that depends on an environment
    variable is its interpolation. If a group is disabled, only the key that disables it is kept. If a search will
    choose the number of partitions, that number is omitted, because a recorded parameter cannot change."""
    params = written(config)
    comm, partition, mode = params["comm"], params["partition"], mode_of(config.comm)
    if not mode.has_servers:
        del comm["ps"]
    if not mode.has_collectives:
        del comm["mpi"]
    if config.partition.name == "search":
        del partition["num"]
    if config.partition.name == "off":
        params["partition"] = {"name": "off"}
    if config.profile.name == "off":
        params["profile"] = {"name": "off"}
    if not config.ckpt.enabled:
        params["ckpt"] = {"enabled": False}
    for group in keys_of_other_actions(config.action):
        del params[group]
    if config.sweep.dir is None:
        del params["sweep"]
    return _without_null(params)


def _without_null(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_null(inner) if isinstance(inner, Mapping) else inner
        for key, inner in value.items()
        if inner is not None
    }
