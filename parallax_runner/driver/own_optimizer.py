"""Handles models that have their own optimizer: Keras models and training steps. The configuration groups `optimizer`
and `update` apply only to other models."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from parallax_runner.config.schema import RunConfig, UpdateConfig
from parallax_runner.errors import ConfigError, Setting

if TYPE_CHECKING:
    from parallax_runner.config.origins import Origins
    from parallax_runner.graph.single_device_graph import SingleDeviceGraph


# Keras' names for the keys of the group `update`.
KERAS_WORDS = {
    "schedule": "learning_rate=keras.optimizers.schedules.…",
    "clip_norm": "clipnorm=…",
    "clip_value": "clipvalue=…",
    "global_clip_norm": "global_clipnorm=…",
    "weight_decay": "weight_decay=…",
    "exclude_from_weight_decay": "optimizer.exclude_from_weight_decay(…)",
}


def without_optimizer(config: RunConfig, single: SingleDeviceGraph) -> RunConfig:
    """Returns the configuration without its group `optimizer` if the model has its own optimizer.

    Raises ConfigError if the command line or a file chooses or changes an optimizer for such a model.
    """
    from parallax_runner.config.running_job import origins_of_running_job

    _refuse_mixed_precision(config, single)
    if not single.has_optimizer:
        return config
    origins = origins_of_running_job()
    if origins is not None:  # None if only the graph is built, as in a test
        check_no_optimizer(
            origins,
            f"model._target_={config.model['_target_']} creates a Keras model or a training step",
            "add a parameter to the model's function for each value that you want to set (model.learning_rate=…)",
        )
    return dataclasses.replace(config, optimizer={}, update=UpdateConfig())


def _refuse_mixed_precision(config: RunConfig, single: SingleDeviceGraph) -> None:
    """Raises ConfigError if the configuration sets the precision of a Keras model, whose policies do."""
    if config.train.mixed_precision != "off" and single.keras_model is not None:
        raise ConfigError("a Keras model has a policy for its precision").about(
            Setting.of("train.mixed_precision", config.train.mixed_precision),
            remedy='remove this setting, and call keras.mixed_precision.set_global_policy("mixed_bfloat16") in the '
            "model's function",
        )


def check_no_optimizer(origins: Origins, cause: str, remedy: str, *, is_keras: bool = True) -> None:
    """Raises ConfigError if a setting chooses or changes the group `optimizer` or `update`, because it would have no
    effect.

    `cause` states which model has its own optimizer, and `remedy` states how to change that optimizer. `is_keras` says
    whether it is one of Keras, which has words of its own for the keys of `update`.
    """
    from parallax_runner.config.group_setting import setting_of

    setting = setting_of("optimizer", origins)
    if setting is not None:
        raise ConfigError(f"{cause}, which has its own optimizer").about(
            setting, remedy=f"remove this setting, and {remedy}"
        )
    setting = setting_of("update", origins)
    if setting is not None:
        in_keras = f"set {_in_keras(setting.key)} where the optimizer is created"
        raise ConfigError(f"{cause}, which has its own optimizer").about(
            setting, remedy=f"remove this setting, and {in_keras if is_keras else remedy}"
        )


def _in_keras(key: str) -> str:
    """Returns how a Keras optimizer names a key of `update`."""
    name = key.lstrip("+~").removeprefix("update").lstrip(".").partition(".")[0]
    word = KERAS_WORDS.get(name)
    return "the same" if word is None else f"{word} of a Keras optimizer"
