"""Handles models that have their own optimizer: Keras models and training steps. The configuration group `optimizer` is
for other models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import yaml

from parallax_runner.config.frozen import plain
from parallax_runner.config.location import conf_dir
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import ConfigError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

# The optimizer that conf/config.yaml chooses by default.
DEFAULT = "adagrad"


def without_optimizer(config: RunConfig, single: SingleDeviceGraph) -> RunConfig:
    """Returns the configuration without its group `optimizer` if the model has its own optimizer.

    Raises ConfigError if the configuration chooses an optimizer for such a model.
    """
    if not single.has_optimizer:
        return config
    default = yaml.safe_load((Path(conf_dir()) / "optimizer" / f"{DEFAULT}.yaml").read_text(encoding="utf-8"))
    if plain(config.optimizer) != default:
        raise ConfigError(
            f"optimizer._target_={config.optimizer['_target_']}: model._target_={config.model['_target_']} makes a "
            "Keras model or a training step, which has its own optimizer; remove optimizer=…, and add "
            "a parameter to the model's function for each value that you want to set (model.learning_rate=…)"
        )
    return dataclasses.replace(config, optimizer={})
