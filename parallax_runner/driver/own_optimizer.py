"""A Keras model and a training step have an optimizer of their own; the group `optimizer` is for other models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import yaml

from parallax_runner.config.frozen import plain
from parallax_runner.config.location import conf_dir
from parallax_runner.config.schema import RunConfig
from parallax_runner.errors import ConfigError
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

# What conf/config.yaml chooses where nobody else does.
DEFAULT = "adagrad"


def without_optimizer(config: RunConfig, single: SingleDeviceGraph) -> RunConfig:
    """The configuration without its group `optimizer`, where the model has its own.

    Raises ConfigError where somebody has chosen one.
    """
    if not single.has_optimizer:
        return config
    default = yaml.safe_load((Path(conf_dir()) / "optimizer" / f"{DEFAULT}.yaml").read_text(encoding="utf-8"))
    if plain(config.optimizer) != default:
        raise ConfigError(
            f"optimizer._target_={config.optimizer['_target_']}: model._target_={config.model['_target_']} makes a "
            "Keras model or a training step, which has an optimizer of its own: remove optimizer=…, and add "
            "an argument to the model's function for each value to change (model.learning_rate=…)"
        )
    return dataclasses.replace(config, optimizer={})
