"""How the examples of a step are divided among replicas that may have different numbers of them
(docs/design/0087)."""

from __future__ import annotations

# The name of a scalar (float64) in a replica's batch, beside the names of features: the replica's part of the step's
# examples, times the number of replicas. Only batches of data with an uneven step contain it.
SHARE = "/share"


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
