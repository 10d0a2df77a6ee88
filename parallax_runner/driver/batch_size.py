"""Determines the batch size of one replica if the data has batches of its own, which all replicas share."""

from __future__ import annotations

import dataclasses
from typing import Any

from parallax_runner.config.cluster_size import replicas_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset
from parallax_runner.data.shares import is_uneven_run
from parallax_runner.errors import ConfigError, Setting


def with_batch_size(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Returns the configuration with `data.batch_size` set. The cluster must be sized.

    Raises ConfigError if the key is not set and the data has no batches, or a batch cannot be divided equally although
    the run needs that.
    """
    if config.data.get("batch_size") is not None:
        return config
    if getattr(dataset, "global_batch", None) is None:
        raise ConfigError(
            "expected an integer, at least 1; only the batch size of a tf.data.Dataset is known, "
            f"but data._target_={config.data['_target_']} returned {type(dataset).__name__}"
        ).about(Setting("data.batch_size", "null"))
    return dataclasses.replace(config, data={**config.data, **sizes_of(config, dataset)})


def sizes_of(config: RunConfig, dataset: Any) -> dict[str, int]:
    """Returns the keys of `data` for data that has batches of its own: `batch_size`, the largest number of examples
    that a replica gets and, if replicas get different numbers, `global_batch`, that of all replicas together. The
    cluster must be sized.

    Raises ConfigError if a batch cannot be divided equally although the run needs that.
    """
    whole, replicas = int(dataset.global_batch), replicas_of(config)
    if is_uneven_run(config, dataset):
        return {"batch_size": -(-whole // replicas), "global_batch": whole}
    if whole % replicas:
        raise ConfigError(
            f"a batch of {whole} examples cannot be divided into {replicas} equal parts, one for each replica; choose "
            f"a batch of {max(1, whole // replicas) * replicas} or another number of workers"
        )
    return {"batch_size": whole // replicas}
