"""How the examples of a step are divided among replicas that may have different numbers of them
(docs/design/0084)."""

from __future__ import annotations

from parallax_runner.config.cluster_size import replicas_of
from parallax_runner.config.schema import RunConfig
from parallax_runner.data.dataset import Dataset, global_batch_of, is_uneven, with_whole_batches

# The name of a scalar (float64) in a replica's batch, beside the names of features: the replica's part of the step's
# examples, times the number of replicas. Only batches of data with an uneven step contain it.
SHARE = "/share"


def as_trained(config: RunConfig, dataset: Dataset) -> Dataset:
    """Returns the dataset that a run trains on. It has no partial batches if a step of the run is not the mean over all
    replicas."""
    return dataset if _takes_means_over_all(config) else with_whole_batches(dataset)


def is_uneven_run(config: RunConfig, dataset: Dataset) -> bool:
    """Returns whether the replicas of some step have different numbers of examples. The cluster must be sized, and
    `dataset` is what `as_trained` has returned."""
    if global_batch_of(dataset) is None:  # all replicas get data.batch_size examples
        return False
    return _takes_means_over_all(config) and is_uneven(dataset, replicas_of(config))


def _takes_means_over_all(config: RunConfig) -> bool:
    """Returns whether a step is the mean over all replicas. It is not if replicas do not wait for each other."""
    return config.comm.sync and not config.comm.ps.backup_workers


def step_examples_of(config: RunConfig, replicas: int) -> int:
    """Returns the number of examples in a step of so many replicas. `data.batch_size` must be set."""
    whole: int | None = config.data.get("global_batch")
    if whole is not None:
        return whole
    batch_size: int = config.data["batch_size"]
    return batch_size * replicas


def share_of(examples: int, step_examples: int, replicas: int) -> float:
    """Returns the share of a replica that has `examples` of the `step_examples` examples of a step.

    The shares of all `replicas` have the mean 1. A replica with exactly its part has the share 1.
    """
    return replicas * examples / step_examples


def rows_of(replica: int, step_examples: int, replicas: int) -> range:
    """Returns the consecutive rows of a step's examples that a replica gets. The sizes of two replicas differ by at
    most one, and replica 0 always has a row."""
    first = -(-step_examples * replica // replicas)
    last = -(-step_examples * (replica + 1) // replicas)
    return range(first, last)
