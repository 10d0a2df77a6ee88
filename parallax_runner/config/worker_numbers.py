"""The numbers of workers with which a run may train, if its cluster changes size (docs/design/0104)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallax_runner.config.actions import action_of
from parallax_runner.config.launchers import declared_by
from parallax_runner.config.resource_info import listed_hosts
from parallax_runner.config.schema import ClusterConfig, RunConfig

GLOBAL, PER_WORKER = "global", "per_worker"
BATCH_SIZE = "batch_size"


@dataclass(frozen=True)
class ClusterSize:
    """The numbers of processes of a cluster. `resource_info` are the lines of its hosts, or None if the configuration
    does not name them."""

    workers: int
    servers: int
    resource_info: tuple[str, ...] | None = None

    @classmethod
    def of(cls, cluster: ClusterConfig) -> ClusterSize:
        """Returns the size that a sized configuration has."""
        lines = cluster.resource_info
        return cls(cluster.workers, cluster.servers, None if lines is None else tuple(lines))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts, if the configuration names them."""
        return listed_hosts(self.resource_info or ())


def is_elastic(config: RunConfig) -> bool:
    """Returns whether the number of workers may change while the run trains, or would if its plan were not only
    shown."""
    action = action_of(config)
    is_training = action.trains or action.explains_plan
    if not is_training or not declared_by(config.cluster.launcher).changes_size:
        return False
    return config.cluster.min_workers is not None or config.cluster.max_workers is not None


def least_workers(cluster: ClusterConfig) -> int:
    """Returns the smallest number of workers that the configuration permits."""
    return cluster.workers if cluster.min_workers is None else cluster.min_workers


def most_workers(cluster: ClusterConfig) -> int:
    """Returns the largest number of workers that the configuration permits."""
    return cluster.workers if cluster.max_workers is None else cluster.max_workers


def worker_numbers(config: RunConfig) -> tuple[int, ...]:
    """Returns the numbers of workers with which the run may train, in ascending order, or an empty tuple if the number
    does not change. `data.batch_size` must be known."""
    if not is_elastic(config):
        return ()
    permitted = range(least_workers(config.cluster), most_workers(config.cluster) + 1)
    return tuple(number for number in permitted if _divides_step(config, number))


def _divides_step(config: RunConfig, workers: int) -> bool:
    """Returns whether so many workers can share the examples of a step equally, if these stay the same."""
    if config.train.on_resize == PER_WORKER:
        return True
    replicas = workers * config.cluster.replicas_per_worker
    whole = config.data.get("global_batch")
    if whole is not None:  # replicas may have different numbers of examples
        return replicas <= int(whole)
    return _examples(config) % (replicas * config.train.accumulate_steps) == 0


def _examples(config: RunConfig) -> int:
    """Returns the number of examples in a step."""
    batch_size: int = config.data[BATCH_SIZE]
    return batch_size * config.cluster.workers * config.cluster.replicas_per_worker


def largest_of(numbers: tuple[int, ...], available: int) -> int | None:
    """Returns the largest of `numbers` that is at most `available`, or None if all are larger."""
    return max((number for number in numbers if number <= available), default=None)


def with_size(config: RunConfig, size: ClusterSize) -> RunConfig:
    """Returns the configuration of the same run on a cluster of another size. If the examples of a step stay the same,
    the batch of a replica changes, otherwise the learning rate, as `train.scale_lr` says."""
    workers = size.workers
    cluster = dataclasses.replace(
        config.cluster,
        workers=workers,
        servers=size.servers,
        resource_info=size.resource_info,
        min_workers=least_workers(config.cluster),
        max_workers=most_workers(config.cluster),
    )
    resized = dataclasses.replace(config, cluster=cluster)
    if config.train.on_resize == PER_WORKER:
        return dataclasses.replace(resized, optimizer=_scaled(config, workers / config.cluster.workers))
    if config.data.get(BATCH_SIZE) is None:  # the data has batches of its own, which workers divide
        return resized
    batch_size = _examples(config) // (workers * config.cluster.replicas_per_worker)
    return dataclasses.replace(resized, data={**config.data, BATCH_SIZE: batch_size})


def _scaled(config: RunConfig, factor: float) -> Mapping[str, Any]:
    factors = {"none": 1.0, "linear": factor, "sqrt": factor**0.5}
    scale = factors[config.train.scale_lr]
    if scale == 1.0:
        return config.optimizer
    return {**config.optimizer, "learning_rate": config.optimizer["learning_rate"] * scale}
