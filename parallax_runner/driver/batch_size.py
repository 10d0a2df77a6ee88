"""Determines the batch size of one replica if the data has batches of its own, which all replicas share."""

from __future__ import annotations

import dataclasses

from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset
from parallax_runner.errors import ConfigError, Setting


def with_batch_size(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Returns the configuration with `data.batch_size` set. The cluster must be sized.

    Raises ConfigError if the key is not set and the data has no batches, or a batch cannot be divided equally.
    """
    if config.data.get("batch_size") is not None:
        return config
    whole = getattr(dataset, "global_batch", None)
    if whole is None:
        raise ConfigError(
            "expected an integer, at least 1; only the batch size of a tf.data.Dataset is known, "
            f"but data._target_={config.data['_target_']} returned {type(dataset).__name__}"
        ).about(Setting("data.batch_size", "null"))
    return dataclasses.replace(config, data={**config.data, "batch_size": replica_batch(config, whole)})


def replica_batch(config: RunConfig, whole: int) -> int:
    """Returns the number of examples that each replica gets of a batch of `whole` examples. The cluster must be sized.

    Raises ConfigError if the batch cannot be divided equally.
    """
    cluster = config.cluster
    parts = 1 if mode_of(config.comm).is_one_process else cluster.workers * cluster.replicas_per_worker
    if whole % parts:
        raise ConfigError(
            f"a batch of {whole} examples cannot be divided into {parts} equal parts, one for each replica; choose a "
            f"batch of {max(1, whole // parts) * parts} or another number of workers"
        )
    return whole // parts
